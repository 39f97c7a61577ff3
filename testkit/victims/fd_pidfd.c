/* Proves that pidfds are restored and refer to the same processes: the program itself, a living
 * child, and a zombie. They work with poll(2), pidfd_send_signal(2) and waitid(2). */
#include "victim.h"

#include <poll.h>
#include <sys/pidfd.h>

#define ZOMBIE_STATUS 23

static int own, living, dead;
static pid_t child, zombie;

static bool readable(int fd)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	return poll(&wait, 1, 0) == 1;
}

static void setup(void)
{
	own = must(pidfd_open(getpid(), 0));
	child = victim_fork();
	if (child == 0) {
		victim_child(NULL, NULL);
	}
	living = must(pidfd_open(child, PIDFD_NONBLOCK));
	zombie = victim_fork();
	if (zombie == 0)
		_exit(ZOMBIE_STATUS);
	dead = must(pidfd_open(zombie, 0));
	must(fcntl(dead, F_SETFD, 0));
	victim_await(readable(dead), "a child does not exit");
}

static void work(void)
{
	must(pidfd_send_signal(own, 0, NULL, 0));
	must(pidfd_send_signal(living, 0, NULL, 0));
	check(!readable(living), "a living child looks dead");
	check(readable(dead), "a zombie looks alive");
}

/* Returns the pid that a pidfd refers to, from fdinfo. */
static pid_t referred(int fd)
{
	char path[64], text[512] = "";
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	int info = must(open(path, O_RDONLY | O_CLOEXEC));
	must(read(info, text, sizeof(text) - 1));
	close(info);
	const char *pid = strstr(text, "Pid:");
	check(pid != NULL, "fd %d is no pidfd: %s", fd, text);
	return (pid_t)strtol(pid + 4, NULL, 10);
}

static void verify(void)
{
	check(referred(own) == getpid(), "own pidfd refers to %d", referred(own));
	check(referred(living) == child, "pidfd of %d refers to %d", child, referred(living));
	check(referred(dead) == zombie, "pidfd of %d refers to %d", zombie, referred(dead));
	check(fcntl(own, F_GETFD) == FD_CLOEXEC && fcntl(dead, F_GETFD) == 0, "close-on-exec changed");
	check((fcntl(living, F_GETFL) & O_NONBLOCK) != 0 && (fcntl(own, F_GETFL) & O_NONBLOCK) == 0,
	      "status flags changed");
	work();
}

static void sabotage(void)
{
	must(dup2(own, living));
}

static void finish(void)
{
	siginfo_t info = { 0 };
	must(waitid(P_PIDFD, (id_t)dead, &info, WEXITED));
	check(info.si_pid == zombie && info.si_status == ZOMBIE_STATUS, "zombie %d had status %d", info.si_pid,
	      info.si_status);
	must_fail_with(waitid(P_PIDFD, (id_t)living, &info, WEXITED), EAGAIN);
	must(pidfd_send_signal(living, SIGKILL, NULL, 0));
	victim_await(readable(living), "a killed child does not show");
	must(waitid(P_PIDFD, (id_t)living, &info, WEXITED));
	check(info.si_pid == child && info.si_code == CLD_KILLED, "child %d ended with code %d", info.si_pid, info.si_code);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
