/* Proves that blocked and pending signals are restored, for the process and for each thread:
 * number, code, sender, value, and the order of real-time signals. */
#include "victim.h"

#define SHARED_QUEUE 3

static pthread_t thread;
static volatile pid_t thread_id;
static volatile int thread_done;

static sigset_t pending_set(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGWINCH);
	sigaddset(&set, SIGRTMIN + 1);
	sigaddset(&set, SIGRTMIN + 2);
	sigaddset(&set, SIGRTMIN + 3);
	return set;
}

static void queue_shared(int signal, int value)
{
	must(sigqueue(getpid(), signal, (union sigval){ .sival_int = value }));
}

static void queue_for(pthread_t target, int signal, int value)
{
	must_zero(pthread_sigqueue(target, signal, (union sigval){ .sival_int = value }));
}

/* Takes the next pending instance of a signal. Fails if the signal is not pending. */
static siginfo_t take(int signal)
{
	struct timespec at_once = { 0, 0 };
	siginfo_t info = { 0 };
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, signal);
	/* A direct system call, because the C library replaces SI_TKILL by SI_USER. */
	check(syscall(SYS_rt_sigtimedwait, &set, &info, &at_once, NSIG / 8) == signal, "tid %ld: signal %d is not pending",
	      (long)syscall(SYS_gettid), signal);
	check(info.si_pid == getpid() && info.si_uid == getuid(), "signal %d comes from pid %d", signal, info.si_pid);
	return info;
}

static void take_value(int signal, int value)
{
	siginfo_t info = take(signal);
	check(info.si_code == SI_QUEUE && info.si_value.sival_int == value, "signal %d: code %d, value %d, want value %d",
	      signal, info.si_code, info.si_value.sival_int, value);
}

static void *thread_body(void *unused)
{
	(void)unused;
	thread_id = (pid_t)syscall(SYS_gettid);
	while (!thread_done)
		victim_nap(VICTIM_NAP_US);
	take_value(SIGRTMIN + 2, 31);
	take_value(SIGRTMIN + 2, 32);
	siginfo_t info = take(SIGWINCH);
	check(info.si_code == SI_TKILL, "SIGWINCH has code %d", info.si_code);
	return NULL;
}

static void setup(void)
{
	sigset_t set = pending_set();
	must(sigprocmask(SIG_BLOCK, &set, NULL));
	thread = victim_thread(thread_body, NULL);
	victim_await(thread_id != 0, "the thread does not start");
	for (int i = 0; i < SHARED_QUEUE; i++)
		queue_shared(SIGRTMIN + 1, 11 + i);
	queue_shared(SIGUSR1, 5);
	must(kill(getpid(), SIGUSR2));
	queue_for(pthread_self(), SIGRTMIN + 2, 21);
	queue_for(pthread_self(), SIGRTMIN + 2, 22);
	queue_for(thread, SIGRTMIN + 2, 31);
	queue_for(thread, SIGRTMIN + 2, 32);
	must_zero(pthread_kill(thread, SIGWINCH));
	queue_shared(SIGRTMIN + 2, 41);
}

static void verify(void)
{
	sigset_t set;
	must(sigpending(&set));
	for (int signal = 1; signal < NSIG; signal++) {
		bool wanted = signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGRTMIN + 1 || signal == SIGRTMIN + 2;
		check(sigismember(&set, signal) == wanted, "signal %d is %spending", signal, wanted ? "not " : "");
	}
}

static void sabotage(void)
{
	take(SIGRTMIN + 1);
}

/* The thread takes its signals first, then the main thread takes its own signals, and then the
 * signals of the process. */
static void finish(void)
{
	sigset_t set;
	thread_done = 1;
	must_zero(pthread_join(thread, NULL));
	for (int i = 0; i < SHARED_QUEUE; i++)
		take_value(SIGRTMIN + 1, 11 + i);
	take_value(SIGUSR1, 5);
	check(take(SIGUSR2).si_code == SI_USER, "SIGUSR2 has lost its code");
	take_value(SIGRTMIN + 2, 21);
	take_value(SIGRTMIN + 2, 22);
	take_value(SIGRTMIN + 2, 41);
	must(sigpending(&set));
	for (int signal = 1; signal < NSIG; signal++)
		check(sigismember(&set, signal) == 0, "signal %d is pending once too often", signal);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
