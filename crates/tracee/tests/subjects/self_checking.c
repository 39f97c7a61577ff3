/* A program whose threads are in all states in which a tracer may stop them, and that detects any
 * change.
 *
 * Prints "ready", and reads commands from stdin. "c" prints the numbers of rounds of the threads.
 * "q" prints "ok EINTRS" and ends the program with status 0. EINTRS is the number of allowed EINTR
 * results. After an error, the program prints "wrong: ..." and exits with 1.
 *
 * If argv[1] is "lenient", calls that do not restart (epoll_wait) may end with EINTR after the
 * death of a tracer. If argv[2] is "restless", the leader also receives signals, and the thread on
 * an alternate stack receives them more often. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "registers.h"

#define SPINS 300000
#define SMALL_STACK 2048
#define FIELD (64 * 1024)
#define SHORT_MS 20
/* Maximum duration of one wait. When a tracer dies, a call may restart with its whole timeout,
 * several times. */
#define LATE_MS 10000

/* Maximum number of 1 ms ticks that may be missing at the end, because they are late on a busy
 * machine. */
#define TICKS_LATE 100

enum { SPINNER, SLEEPER, POLLER, TIMED_POLLER, FUTEX, TIMED_FUTEX, PIPE, EPOLL, TIMED_EPOLL, SMALL, HANDLER, TICKS,
       SUSPENDED, WAITER, TIMED_SOCKET, LEADER, PLACES };

static volatile int over;
static int begun;
static volatile unsigned long rounds[PLACES];
static volatile unsigned long interrupted;
static long nested_ns = 700000;
static int lenient, wake_fd, pipe_ends[2], sockets[2];
static int futex_word;

__attribute__((noreturn, format(printf, 1, 2))) static void wrong(const char *format, ...)
{
	char line[512];
	va_list args;
	va_start(args, format);
	int used = snprintf(line, sizeof(line), "wrong: ");
	used += vsnprintf(line + used, sizeof(line) - used - 1, format, args);
	line[used++] = '\n';
	write(1, line, used);
	_exit(1);
}

#define check(condition, ...) do { if (!(condition)) wrong(__VA_ARGS__); } while (0)

static long now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000l + now.tv_nsec / 1000;
}

/* Reports the crash of a thread, for example after a tracer has changed its registers. */
static void on_crash(int signal, siginfo_t *info, void *context)
{
	ucontext_t *at = context;
	wrong("signal %d (code %d, address %p) at %llx, stack %llx, rax %llx, thread %ld", signal, info->si_code,
	      info->si_addr, at->uc_mcontext.gregs[REG_RIP], at->uc_mcontext.gregs[REG_RSP],
	      at->uc_mcontext.gregs[REG_RAX], syscall(SYS_gettid));
}

static void all_but_crashes(sigset_t *mask)
{
	sigfillset(mask);
	sigdelset(mask, SIGSEGV);
	sigdelset(mask, SIGBUS);
	sigdelset(mask, SIGILL);
	sigdelset(mask, SIGTRAP);
	sigdelset(mask, SIGSYS);
	sigdelset(mask, SIGFPE);
}

static void check_mask(const char *who, const sigset_t *expected)
{
	sigset_t now;
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	for (int i = 1; i < NSIG; i++)
		check(sigismember(&now, i) == sigismember(expected, i), "%s: signal %d changed in the mask", who, i);
}

/* Counts the threads whose masks and handlers are set. "ready" is printed when all are set, because
 * the test may then send signals. */
static void set_up(void)
{
	__atomic_add_fetch(&begun, 1, __ATOMIC_SEQ_CST);
}

/* Sets the mask of the calling thread. It blocks all signals except the crash signals and one
 * real-time signal, which depends on `place`. */
static sigset_t own_mask(int place)
{
	sigset_t mask;
	all_but_crashes(&mask);
	sigdelset(&mask, SIGRTMIN + 5 + place % 8);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	set_up();
	return mask;
}

static int may_be_interrupted(void)
{
	if (!lenient || errno != EINTR)
		return 0;
	interrupted++;
	return 1;
}

static void check_late(const char *who, long from, long least_ms)
{
	long us = now_us() - from;
	check(us >= least_ms * 1000 && us < LATE_MS * 1000, "%s: %ld us passed", who, us);
}

static void *spinner(void *unused)
{
	sigset_t mask = own_mask(SPINNER);
	(void)unused;
	for (uint64_t seed = 1; !over; seed++) {
		for (int i = 0; i < 15; i++)
			registers_in[i] = (seed << 32) * 2654435761u + i * 0x0101010101010101u;
		for (int i = 0; i < 512; i++)
			vectors_in[i] = (unsigned char)(seed * 31 + i * 7);
		registers_spins = SPINS;
		registers_spin();
		for (int i = 0; i < 15; i++)
			check(registers_in[i] == registers_out[i], "general register %d is %lx, was %lx", i,
			      registers_out[i], registers_in[i]);
		for (int i = 0; i < 512; i++)
			check(vectors_in[i] == vectors_out[i], "byte %d of vector register %d changed", i % 32, i / 32);
		check(registers_stack[0] == registers_stack[1], "the stack pointer moved");
		check(registers_zone[0] == 0x5a5a1234abcd0001 && registers_zone[1] == 0x5a5a1234abcd0002,
		      "the red zone was written");
		check_mask("spinner", &mask);
		rounds[SPINNER]++;
	}
	return NULL;
}

static void *sleeper(void *unused)
{
	sigset_t mask = own_mask(SLEEPER);
	(void)unused;
	while (!over) {
		struct timespec span = { 0, SHORT_MS * 1000000 };
		long from = now_us();
		check(nanosleep(&span, NULL) == 0, "nanosleep: %m");
		check_late("nanosleep", from, SHORT_MS);
		check_mask("sleeper", &mask);
		rounds[SLEEPER]++;
	}
	return NULL;
}

static void *poller(void *unused)
{
	sigset_t mask = own_mask(POLLER);
	struct pollfd wake = { wake_fd, POLLIN, 0 };
	(void)unused;
	int result = poll(&wake, 1, -1);
	check(result == 1 && over, "poll gave %d: %m", result);
	check_mask("poller", &mask);
	return NULL;
}

static void *timed_poller(void *unused)
{
	sigset_t mask = own_mask(TIMED_POLLER);
	(void)unused;
	while (!over) {
		long from = now_us();
		int result = poll(NULL, 0, SHORT_MS);
		check(result == 0, "timed poll gave %d: %m", result);
		check_late("poll", from, SHORT_MS);
		check_mask("timed poller", &mask);
		rounds[TIMED_POLLER]++;
	}
	return NULL;
}

static void *futex_waiter(void *unused)
{
	sigset_t mask = own_mask(FUTEX);
	(void)unused;
	long result = syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, NULL, NULL, 0);
	check(result == 0 && over, "futex gave %ld: %m", result);
	check_mask("futex waiter", &mask);
	return NULL;
}

static void *timed_futex(void *unused)
{
	static int word;
	sigset_t mask = own_mask(TIMED_FUTEX);
	(void)unused;
	while (!over) {
		struct timespec span = { 0, SHORT_MS * 1000000 };
		long from = now_us();
		long result = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &span, NULL, 0);
		check(result == -1 && errno == ETIMEDOUT, "timed futex gave %ld: %m", result);
		check_late("futex", from, SHORT_MS);
		check_mask("timed futex", &mask);
		rounds[TIMED_FUTEX]++;
	}
	return NULL;
}

static void *pipe_reader(void *unused)
{
	sigset_t mask = own_mask(PIPE);
	char byte;
	(void)unused;
	ssize_t result = read(pipe_ends[0], &byte, 1);
	check(result == 1 && over, "read gave %zd: %m", result);
	check_mask("pipe reader", &mask);
	return NULL;
}

static int epoll_set(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	int set = epoll_create1(0);
	check(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, wake_fd, &event) == 0, "epoll: %m");
	return set;
}

static void *epoll_waiter(void *unused)
{
	sigset_t mask = own_mask(EPOLL);
	struct epoll_event event;
	int set = epoll_set(), result;
	(void)unused;
	while ((result = epoll_wait(set, &event, 1, -1)) < 0 && may_be_interrupted())
		continue;
	check(result == 1 && over, "epoll_wait gave %d: %m", result);
	check_mask("epoll waiter", &mask);
	return NULL;
}

static void *timed_epoll(void *unused)
{
	sigset_t mask = own_mask(TIMED_EPOLL), inner = mask;
	int set = epoll_create1(0);
	struct epoll_event event;
	sigaddset(&inner, SIGRTMIN + 5);
	(void)unused;
	while (!over) {
		long from = now_us();
		int result = epoll_pwait(set, &event, 1, SHORT_MS, &inner);
		if (result < 0 && may_be_interrupted())
			continue;
		check(result == 0, "timed epoll_pwait gave %d: %m", result);
		check_late("epoll_pwait", from, SHORT_MS - 1);
		check_mask("timed epoll", &mask);
		rounds[TIMED_EPOLL]++;
	}
	return NULL;
}

/* A small thread stack inside memory that belongs to other objects, as in Go programs. */
struct field {
	unsigned char before[FIELD];
	unsigned char stack[SMALL_STACK];
	unsigned char after[FIELD];
};

static void check_field(struct field *field, const char *who)
{
	for (int i = 0; i < FIELD; i++)
		check(field->before[i] == (unsigned char)(i * 13) && field->after[i] == (unsigned char)(i * 11),
		      "%s: memory around the small stack changed at %d (%d, %d)", who, i, field->before[i],
		      field->after[i]);
}

static struct field *field_new(void)
{
	struct field *field = mmap(NULL, sizeof(*field), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(field != MAP_FAILED, "mmap: %m");
	for (int i = 0; i < FIELD; i++) {
		field->before[i] = (unsigned char)(i * 13);
		field->after[i] = (unsigned char)(i * 11);
	}
	return field;
}

__attribute__((noinline)) static void small_loop(struct field *field)
{
	while (!over) {
		for (volatile int i = 0; i < 200000; i++)
			continue;
		check_field(field, "small stack");
		rounds[SMALL]++;
	}
}

static void *small_stack(void *unused)
{
	sigset_t mask = own_mask(SMALL);
	struct field *field = field_new();
	(void)unused;
	__asm__ volatile("movq %%rsp, %%rbx\n"
			 "movq %0, %%rsp\n"
			 "movq %1, %%rdi\n"
			 "call *%2\n"
			 "movq %%rbx, %%rsp\n"
			 :
			 : "r"(field->stack + SMALL_STACK), "r"(field), "r"((void (*)(struct field *))small_loop)
			 : "rbx", "rdi", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
	check_mask("small stack", &mask);
	return NULL;
}

/* A thread that stays in a signal handler on an alternate stack, and repeatedly receives signals
 * there. */
static struct field *alternate;
static volatile unsigned long nested;

static void on_nested(int signal)
{
	(void)signal;
	nested++;
}

static void on_alternate(int signal)
{
	volatile unsigned char local[512];
	(void)signal;
	memset((void *)local, 0x77, sizeof(local));
	while (!over) {
		for (volatile int i = 0; i < 50000; i++)
			continue;
		for (unsigned i = 0; i < sizeof(local); i++)
			check(local[i] == 0x77, "the alternate stack in use was written");
		rounds[HANDLER]++;
	}
}

static void *handler(void *unused)
{
	struct sigaction outer = { .sa_handler = on_alternate, .sa_flags = SA_ONSTACK };
	struct sigaction inner = { .sa_handler = on_nested, .sa_flags = SA_ONSTACK | SA_RESTART };
	unsigned char *stack = mmap(NULL, 128 * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t description = { .ss_sp = stack + 32 * 1024, .ss_size = 64 * 1024 }, found;
	sigset_t mask;
	(void)unused;
	memset(stack, 0x33, 32 * 1024);
	alternate = field_new();
	all_but_crashes(&mask);
	sigdelset(&mask, SIGRTMIN + 2);
	sigdelset(&mask, SIGRTMIN + 3);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	sigaction(SIGRTMIN + 2, &outer, NULL);
	sigaction(SIGRTMIN + 3, &inner, NULL);
	check(sigaltstack(&description, NULL) == 0, "sigaltstack: %m");
	timer_t timer;
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 3 };
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	struct itimerspec setting = { { 0, nested_ns }, { 0, nested_ns } };
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &setting, NULL);
	set_up();
	pthread_kill(pthread_self(), SIGRTMIN + 2);
	check_mask("handler", &mask);
	check(sigaltstack(NULL, &found) == 0 && found.ss_sp == description.ss_sp && found.ss_flags == 0,
	      "the alternate stack changed");
	for (int i = 0; i < 32 * 1024; i++)
		check(stack[i] == 0x33, "memory below the alternate stack was written");
	timer_delete(timer);
	return NULL;
}

/* A thread whose timer signals must all arrive, with their values. */
static volatile unsigned long ticks;

static void on_tick(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	check(info->si_code == SI_TIMER && info->si_value.sival_int == 4711, "a tick has code %d and value %d",
	      info->si_code, info->si_value.sival_int);
	ticks += 1 + (unsigned long)info->si_overrun;
	rounds[TICKS]++;
}

static void *ticker(void *unused)
{
	struct sigaction action = { .sa_sigaction = on_tick, .sa_flags = SA_SIGINFO | SA_RESTART };
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 1,
				  .sigev_value.sival_int = 4711 };
	struct itimerspec setting = { { 0, 1000000 }, { 0, 1000000 } };
	sigset_t mask;
	timer_t timer;
	(void)unused;
	all_but_crashes(&mask);
	sigdelset(&mask, SIGRTMIN + 1);
	sigaction(SIGRTMIN + 1, &action, NULL);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	check(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create: %m");
	set_up();
	long from = now_us();
	timer_settime(timer, 0, &setting, NULL);
	while (!over) {
		for (volatile int i = 0; i < 20000; i++)
			continue;
	}
	long expected = (now_us() - from) / 1000;
	check(ticks + TICKS_LATE >= (unsigned long)expected, "%lu ticks of %ld arrived", ticks, expected);
	timer_delete(timer);
	return NULL;
}

/* A thread in sigsuspend, which must return once for each signal and never after a stop. After each
 * return, the thread must have its original mask. */
static volatile unsigned long sent, got;

static void on_wake(int signal)
{
	(void)signal;
	got++;
}

static pthread_t suspended_thread;

static void *suspended(void *unused)
{
	struct sigaction action = { .sa_handler = on_wake };
	sigset_t mask, inner;
	(void)unused;
	sigaction(SIGRTMIN + 4, &action, NULL);
	all_but_crashes(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	inner = mask;
	sigdelset(&inner, SIGRTMIN + 4);
	set_up();
	while (!over) {
		unsigned long before = got;
		check(sigsuspend(&inner) == -1 && errno == EINTR, "sigsuspend: %m");
		check(got > before, "sigsuspend returned without a signal");
		check_mask("suspended", &mask);
		rounds[SUSPENDED]++;
	}
	return NULL;
}

static void *signal_waiter(void *unused)
{
	sigset_t wanted;
	int result;
	own_mask(WAITER);
	(void)unused;
	sigemptyset(&wanted);
	sigaddset(&wanted, SIGRTMIN + 15);
	while ((result = sigwaitinfo(&wanted, NULL)) < 0 && may_be_interrupted())
		continue;
	check(result == SIGRTMIN + 15 && over, "sigwaitinfo gave %d: %m", result);
	return NULL;
}

static void *timed_socket(void *unused)
{
	struct timeval limit = { 0, SHORT_MS * 1000 };
	char byte;
	own_mask(TIMED_SOCKET);
	(void)unused;
	setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	while (!over) {
		ssize_t result = recv(sockets[0], &byte, 1, 0);
		if (result < 0 && may_be_interrupted())
			continue;
		check(result == -1 && errno == EAGAIN, "timed recv gave %zd: %m", result);
		rounds[TIMED_SOCKET]++;
	}
	return NULL;
}

static void *(*const bodies[PLACES])(void *) = {
	[SPINNER] = spinner, [SLEEPER] = sleeper, [POLLER] = poller, [TIMED_POLLER] = timed_poller,
	[FUTEX] = futex_waiter, [TIMED_FUTEX] = timed_futex, [PIPE] = pipe_reader, [EPOLL] = epoll_waiter,
	[TIMED_EPOLL] = timed_epoll, [SMALL] = small_stack, [HANDLER] = handler, [TICKS] = ticker,
	[SUSPENDED] = suspended, [WAITER] = signal_waiter, [TIMED_SOCKET] = timed_socket,
};

static pthread_t threads[PLACES];

static void finish(void)
{
	uint64_t one = 1;
	over = 1;
	write(wake_fd, &one, sizeof(one));
	write(pipe_ends[1], "x", 1);
	pthread_kill(threads[WAITER], SIGRTMIN + 15);
	/* A thread from which a tracer has just detached may not be in its futex wait yet. A
	 * wake-up is then lost, so it is repeated. */
	while (pthread_tryjoin_np(threads[FUTEX], NULL) == EBUSY) {
		syscall(SYS_futex, &futex_word, FUTEX_WAKE, 9, NULL, NULL, 0);
		usleep(1000);
	}
	pthread_kill(suspended_thread, SIGRTMIN + 4);
	for (int i = 0; i < LEADER; i++)
		if (i != FUTEX)
			pthread_join(threads[i], NULL);
	printf("ok %lu\n", interrupted);
	exit(0);
}

static void on_leader(int signal)
{
	volatile unsigned char local[4096];
	(void)signal;
	memset((void *)local, 0x55, sizeof(local));
}

/* Sends a signal to the leader every 0.3 ms, so that a signal is pending after each stop of the
 * leader. */
static void signal_leader(void)
{
	struct sigaction action = { .sa_handler = on_leader, .sa_flags = SA_RESTART };
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 6 };
	struct itimerspec setting = { { 0, 300000 }, { 0, 300000 } };
	timer_t timer;
	event._sigev_un._tid = getpid();
	sigaction(SIGRTMIN + 6, &action, NULL);
	check(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create: %m");
	timer_settime(timer, 0, &setting, NULL);
}

static void answer(void)
{
	for (int i = 0; i < PLACES; i++)
		printf("%lu ", rounds[i]);
	printf("\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	lenient = argc > 1 && strcmp(argv[1], "lenient") == 0;
	int restless = argc > 2 && strcmp(argv[2], "restless") == 0;
	if (restless)
		nested_ns = 30000;
	struct sigaction crash = { .sa_sigaction = on_crash, .sa_flags = SA_SIGINFO };
	sigaction(SIGSEGV, &crash, NULL);
	sigaction(SIGBUS, &crash, NULL);
	sigaction(SIGILL, &crash, NULL);
	sigaction(SIGTRAP, &crash, NULL);
	sigaction(SIGSYS, &crash, NULL);
	sigaction(SIGFPE, &crash, NULL);
	wake_fd = eventfd(0, 0);
	check(wake_fd >= 0 && pipe(pipe_ends) == 0, "setup: %m");
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair: %m");
	for (int i = 0; i < LEADER; i++)
		check(pthread_create(&threads[i], NULL, bodies[i], NULL) == 0, "pthread_create");
	suspended_thread = threads[SUSPENDED];
	while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < LEADER)
		usleep(1000);
	/* Gives the threads time to enter their calls. */
	usleep(30000);
	printf("ready\n");
	fflush(stdout);
	if (restless)
		signal_leader();
	for (;;) {
		struct pollfd input = { 0, POLLIN, 0 };
		char command;
		int result = poll(&input, 1, 3);
		check(result >= 0 || (restless && errno == EINTR), "poll of the leader: %m");
		rounds[LEADER]++;
		if (result < 0)
			continue;
		pthread_kill(suspended_thread, SIGRTMIN + 4);
		sent++;
		if (result == 0)
			continue;
		if (read(0, &command, 1) != 1 || command == 'q')
			finish();
		else if (command == 'c')
			answer();
	}
}
