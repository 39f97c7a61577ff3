/* Proves that a signal ends a blocked call with EINTR, also if the signal is delivered at the moment
 * when the restored thread continues. The threads of a child are blocked, one in each call. The child
 * is stopped, and each thread has a pending signal. After SIGCONT, each handler runs once, and each
 * call returns EINTR, or is restarted if the handler has SA_RESTART. */
#include "victim.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/select.h>

#define LONG_S 600

static int quiet_pipe[2], epoll_set, futex_word;
static pid_t child;

static long call_poll(void)
{
	struct pollfd wait = { .fd = quiet_pipe[0], .events = POLLIN };
	return poll(&wait, 1, -1);
}

static long call_poll_timed(void)
{
	return poll(NULL, 0, LONG_S * 1000);
}

static long call_select(void)
{
	struct timeval limit = { LONG_S, 0 };
	return select(0, NULL, NULL, NULL, &limit);
}

static long call_epoll(void)
{
	struct epoll_event event;
	return epoll_wait(epoll_set, &event, 1, -1);
}

static long call_nanosleep(void)
{
	struct timespec time = { LONG_S, 0 };
	return nanosleep(&time, &time);
}

static long call_pause(void)
{
	return pause();
}

static long call_read(void)
{
	char byte;
	return read(quiet_pipe[0], &byte, 1);
}

static long call_futex(void)
{
	return syscall(SYS_futex, &futex_word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static long call_sigsuspend(void)
{
	sigset_t mask;
	sigfillset(&mask);
	sigdelset(&mask, SIGUSR1);
	return sigsuspend(&mask);
}

static const struct call {
	const char *name;
	long (*make)(void);
	int signal; /* the handler of SIGUSR2 has SA_RESTART */
	bool restarts;
} calls[] = {
	{ "poll", call_poll, SIGUSR1, false },
	{ "poll with timeout", call_poll_timed, SIGUSR1, false },
	{ "select", call_select, SIGUSR1, false },
	{ "epoll_wait", call_epoll, SIGUSR1, false },
	{ "nanosleep", call_nanosleep, SIGUSR1, false },
	{ "pause", call_pause, SIGUSR1, false },
	{ "read", call_read, SIGUSR1, false },
	{ "futex", call_futex, SIGUSR1, false },
	{ "sigsuspend", call_sigsuspend, SIGUSR1, false },
	{ "poll and SA_RESTART", call_poll, SIGUSR2, false },
	{ "read and SA_RESTART", call_read, SIGUSR2, true },
	{ "futex and SA_RESTART", call_futex, SIGUSR2, true },
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

struct caller {
	volatile pid_t tid;
	volatile int handled, returned, error;
};
static struct caller *callers;
static __thread struct caller *self;

static void handle(int signal)
{
	(void)signal;
	self->handled++;
}

static void make_call(const struct call *call)
{
	sigset_t unblocked;
	self = &callers[call - calls];
	sigemptyset(&unblocked);
	sigaddset(&unblocked, call->signal);
	if (call->make != call_sigsuspend)
		must_zero(pthread_sigmask(SIG_UNBLOCK, &unblocked, NULL));
	self->tid = (pid_t)syscall(SYS_gettid);
	long result = call->make();
	self->error = result < 0 ? errno : 0;
	self->returned = 1;
}

static void *thread_body(void *argument)
{
	make_call(argument);
	return argument;
}

static char state_of(pid_t pid, pid_t tid)
{
	char path[64], text[512] = "";
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
	int fd = must(open(path, O_RDONLY | O_CLOEXEC));
	must(read(fd, text, sizeof(text) - 1));
	close(fd);
	const char *name_end = strrchr(text, ')');
	return name_end != NULL ? name_end[2] : '?';
}

/* The main thread makes the first call, since a stop signal is delivered to it first. */
__attribute__((noreturn)) static void be_child(void)
{
	struct sigaction interrupts = { .sa_handler = handle };
	struct sigaction restarts = { .sa_handler = handle, .sa_flags = SA_RESTART };
	must(sigaction(SIGUSR1, &interrupts, NULL));
	must(sigaction(SIGUSR2, &restarts, NULL));
	for (size_t i = 1; i < CALLS; i++)
		victim_thread(thread_body, (void *)&calls[i]);
	make_call(&calls[0]);
	for (;;)
		victim_nap(VICTIM_NAP_US);
}

static void setup(void)
{
	int status = 0;
	callers = mmap(NULL, sizeof(*callers) * CALLS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(callers != MAP_FAILED, "mmap: %m");
	must(pipe(quiet_pipe));
	epoll_set = must(epoll_create1(0));
	child = victim_fork();
	if (child == 0)
		be_child();
	for (size_t i = 0; i < CALLS; i++)
		victim_await(callers[i].tid != 0 && state_of(child, callers[i].tid) == 'S', "%s: is not blocked",
			     calls[i].name);
	victim_nap(20000);
	must(kill(child, SIGSTOP));
	check(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status), "no stop: status 0x%x", status);
	for (size_t i = 0; i < CALLS; i++)
		must(syscall(SYS_tgkill, child, callers[i].tid, calls[i].signal));
}

static void verify(void)
{
	for (size_t i = 0; i < CALLS; i++)
		check(!callers[i].handled && !callers[i].returned, "%s: the stopped thread has run", calls[i].name);
}

static void sabotage(void)
{
	must(kill(child, SIGCONT));
	victim_await(callers[0].returned, "poll does not return");
}

static void finish(void)
{
	must(kill(child, SIGCONT));
	for (size_t i = 0; i < CALLS; i++) {
		victim_await(callers[i].handled == 1, "%s: the handler ran %d times", calls[i].name, callers[i].handled);
		if (!calls[i].restarts)
			victim_await(callers[i].returned && callers[i].error == EINTR, "%s: returned %d, errno %d",
				     calls[i].name, callers[i].returned, callers[i].error);
	}
	victim_nap(20000);
	for (size_t i = 0; i < CALLS; i++)
		check(callers[i].returned == !calls[i].restarts, "%s: returned in spite of SA_RESTART", calls[i].name);
	must(kill(child, SIGKILL));
	must(waitpid(child, NULL, 0));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
