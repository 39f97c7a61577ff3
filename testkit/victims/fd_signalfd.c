/* Proves that signalfds are restored with their mask, and with their pending signals: number,
 * sender, value and order. */
#include "victim.h"

#include <poll.h>
#include <sys/signalfd.h>

#define QUEUED 3

static int quiet, busy;
static int first_value = 100;

static sigset_t set_of(int one, int two)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, one);
	sigaddset(&set, two);
	return set;
}

static void queue(int number, int value)
{
	must(sigqueue(getpid(), number, (union sigval){ .sival_int = value }));
}

static struct signalfd_siginfo take(int fd)
{
	struct signalfd_siginfo info;
	check(read(fd, &info, sizeof(info)) == sizeof(info), "signalfd read: %m");
	return info;
}

static void setup(void)
{
	sigset_t quiet_set = set_of(SIGUSR1, SIGHUP), busy_set = set_of(SIGRTMIN + 1, SIGRTMIN + 1), blocked;
	sigorset(&blocked, &quiet_set, &busy_set);
	must(sigprocmask(SIG_BLOCK, &blocked, NULL));
	quiet = must(signalfd(-1, &quiet_set, SFD_NONBLOCK | SFD_CLOEXEC));
	busy = must(signalfd(-1, &busy_set, SFD_NONBLOCK));
	must(kill(getpid(), SIGUSR1));
	for (int i = 0; i < QUEUED; i++)
		queue(SIGRTMIN + 1, first_value + i);
}

static void work(void)
{
	struct signalfd_siginfo info = take(busy);
	check(info.ssi_signo == (unsigned)SIGRTMIN + 1 && info.ssi_int == first_value, "signal %u brought %d, want %d",
	      info.ssi_signo, info.ssi_int, first_value);
	check(info.ssi_code == SI_QUEUE && info.ssi_pid == (unsigned)getpid(), "sender is %u, code %d", info.ssi_pid,
	      info.ssi_code);
	queue(SIGRTMIN + 1, first_value + QUEUED);
	first_value++;
}

/* Checks the mask in fdinfo, which is a hexadecimal set of signals. */
static void check_mask(const char *name, int fd, unsigned long long expected)
{
	char path[64], text[512] = "";
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	int info = must(open(path, O_RDONLY | O_CLOEXEC));
	must(read(info, text, sizeof(text) - 1));
	close(info);
	const char *mask = strstr(text, "sigmask:");
	check(mask != NULL && strtoull(mask + 8, NULL, 16) == expected, "%s: mask changed: %s", name, text);
}

static void verify(void)
{
	struct pollfd wait = { .fd = quiet, .events = POLLIN };
	check_mask("quiet", quiet, 1ull << (SIGUSR1 - 1) | 1ull << (SIGHUP - 1));
	check_mask("busy", busy, 1ull << SIGRTMIN);
	check(fcntl(quiet, F_GETFD) == FD_CLOEXEC && fcntl(busy, F_GETFD) == 0, "close-on-exec changed");
	check((fcntl(quiet, F_GETFL) & O_NONBLOCK) != 0, "status flags changed");
	check(poll(&wait, 1, 0) == 1, "the waiting signal does not show");
}

static void sabotage(void)
{
	take(busy);
}

static void finish(void)
{
	struct signalfd_siginfo info = take(quiet), more;
	check(info.ssi_signo == SIGUSR1 && info.ssi_code == SI_USER && info.ssi_pid == (unsigned)getpid(),
	      "signal %u, code %d, from %u", info.ssi_signo, info.ssi_code, info.ssi_pid);
	must_fail_with(read(quiet, &more, sizeof(more)), EAGAIN);
	for (int i = 0; i < QUEUED; i++)
		check(take(busy).ssi_int == first_value + i, "queued signal %d is wrong", i);
	must_fail_with(read(busy, &more, sizeof(more)), EAGAIN);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
