/* A process tree that changes continuously. Threads, forked children, executed programs and spawned
 * processes start and end. One child is repeatedly stopped and continued, and one child has no
 * leading thread any more. Each part checks its results.
 *
 * The protocol is that of self_checking.c. After "ready", the program also prints the address of
 * its counters. They are in memory that all parts share, so that the test can see whether a part
 * makes progress. If argv[1] is a number, only this part is started. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS, FORKS, EXECS, SPAWNS, STOPS, HEADLESS, THREADED_EXECS, DEEP, SIGNALS, LEADER, PARTS };

#define DEPTH 4

struct shared {
	volatile unsigned long rounds[PARTS];
	volatile int over, received;
	char trouble[256];
};

static struct shared *shared;
static char self[4096];

__attribute__((noreturn, format(printf, 1, 2))) static void wrong(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(shared->trouble, sizeof(shared->trouble), format, args);
	dprintf(1, "wrong: %s\n", shared->trouble);
	_exit(1);
}

#define check(condition, ...) do { if (!(condition)) wrong(__VA_ARGS__); } while (0)

static void nap(long us)
{
	struct timespec span = { 0, us * 1000 };
	check(nanosleep(&span, NULL) == 0, "nanosleep: %m");
}

/* Forks a child that the kernel kills when its parent ends. */
static pid_t fork_bound(void)
{
	pid_t child = fork();
	check(child >= 0, "fork: %m");
	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return child;
}

static void *echo(void *value)
{
	return value;
}

static void thread_part(void)
{
	for (unsigned long i = 1; !shared->over; i++) {
		pthread_t threads[3];
		for (unsigned long j = 0; j < 3; j++)
			check(pthread_create(&threads[j], NULL, echo, (void *)(i * 3 + j)) == 0, "pthread_create");
		for (unsigned long j = 0; j < 3; j++) {
			void *value;
			check(pthread_join(threads[j], &value) == 0 && value == (void *)(i * 3 + j), "pthread_join");
		}
		shared->rounds[THREADS]++;
	}
}

static void expect_exit(pid_t child, int code, const char *who)
{
	int status;
	pid_t got = waitpid(child, &status, 0);
	check(got == child, "%s: waitpid gave %d: %m", who, got);
	check(WIFEXITED(status) && WEXITSTATUS(status) == code, "%s: status %x, not %d", who, status, code);
}

static void fork_part(void)
{
	for (int i = 0; !shared->over; i++) {
		pid_t child = fork_bound();
		if (child == 0)
			_exit(i % 100);
		expect_exit(child, i % 100, "fork");
		shared->rounds[FORKS]++;
	}
}

static void exec_part(void)
{
	for (int i = 0; !shared->over; i++) {
		char code[8];
		pid_t child = fork_bound();
		sprintf(code, "%d", i % 100);
		if (child == 0) {
			execl(self, self, "exit", code, NULL);
			_exit(255);
		}
		expect_exit(child, i % 100, "exec");
		shared->rounds[EXECS]++;
	}
}

static void spawn_part(void)
{
	for (int i = 0; !shared->over; i++) {
		char code[8];
		char *arguments[] = { self, "exit", code, NULL }, *environment[] = { NULL };
		pid_t child;
		sprintf(code, "%d", i % 100);
		check(posix_spawn(&child, self, NULL, NULL, arguments, environment) == 0, "posix_spawn: %m");
		expect_exit(child, i % 100, "spawn");
		shared->rounds[SPAWNS]++;
	}
}

/* Checks that the child does not run while it is stopped, and runs again after SIGCONT. */
static void stop_part(void)
{
	volatile unsigned long *steps = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child = fork_bound();
	int status;
	if (child == 0) {
		for (;;)
			(*steps)++;
	}
	while (!shared->over) {
		check(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child, "stop: %m");
		check(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "the stop gave status %x", status);
		nap(300);
		unsigned long then = *steps;
		nap(2000);
		check(*steps == then, "the stopped child moved");
		check(kill(child, SIGCONT) == 0 && waitpid(child, &status, WCONTINUED) == child, "continue: %m");
		check(WIFCONTINUED(status), "the continuation gave status %x", status);
		for (int i = 0; *steps == then; i++) {
			check(i < 20000, "the continued child does not move");
			nap(1000);
		}
		shared->rounds[STOPS]++;
	}
	kill(child, SIGKILL);
	check(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "kill: %m");
}

static void *headless(void *unused)
{
	(void)unused;
	while (!shared->over) {
		nap(500);
		shared->rounds[HEADLESS]++;
	}
	_exit(7);
}

static void *exec_in_thread(void *code)
{
	execl(self, self, "exit", code, NULL);
	_exit(255);
}

static void *idle(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

/* A thread other than the leader calls exec while other threads are idle. */
static void threaded_exec_part(void)
{
	for (int i = 0; !shared->over; i++) {
		char code[8];
		pid_t child = fork_bound();
		sprintf(code, "%d", i % 100);
		if (child == 0) {
			pthread_t threads[3];
			pthread_create(&threads[0], NULL, idle, NULL);
			pthread_create(&threads[1], NULL, idle, NULL);
			pthread_create(&threads[2], NULL, exec_in_thread, code);
			idle(NULL);
		}
		expect_exit(child, i % 100, "exec in a thread");
		shared->rounds[THREADED_EXECS]++;
	}
}

static void deep_part(int depth)
{
	if (depth == 0) {
		while (!shared->over) {
			nap(200);
			shared->rounds[DEEP]++;
		}
		return;
	}
	pid_t child = fork_bound();
	if (child == 0) {
		deep_part(depth - 1);
		_exit(depth);
	}
	expect_exit(child, depth, "deep");
}

/* Maximum number of queued signals. They count against a limit that all processes of a user share.
 * The test checks that queued signals keep their order, number and values. */
#define SIGNALS_QUEUED_MAX 64
static volatile int expected_value;

static void on_value(int signal, siginfo_t *info, void *context)
{
	(void)context;
	check(info->si_code == SI_QUEUE && info->si_value.sival_int == expected_value, "signal %d: code %d, value %d of %d",
	      signal, info->si_code, info->si_value.sival_int, expected_value);
	expected_value++;
	shared->received = expected_value;
}

static void signal_part(void)
{
	struct sigaction action = { .sa_sigaction = on_value, .sa_flags = SA_SIGINFO | SA_RESTART };
	pid_t parent;
	sigaction(SIGRTMIN + 1, &action, NULL);
	parent = getpid();
	pid_t child = fork_bound();
	if (child == 0) {
		for (int i = 0; !shared->over; i++) {
			while (i - shared->received >= SIGNALS_QUEUED_MAX)
				nap(100);
			check(sigqueue(parent, SIGRTMIN + 1, (union sigval){ .sival_int = i }) == 0, "sigqueue: %m");
			shared->rounds[SIGNALS]++;
			for (volatile int j = 0; j < 100000; j++)
				continue;
		}
		_exit(3);
	}
	while (!shared->over)
		for (volatile int i = 0; i < 1000; i++)
			continue;
	expect_exit(child, 3, "signals");
	check((unsigned long)expected_value == shared->rounds[SIGNALS], "%d signals of %lu came", expected_value,
	      shared->rounds[SIGNALS]);
}

static void deep(void)
{
	deep_part(DEPTH);
}

static void headless_part(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, headless, NULL);
	pthread_exit(NULL);
}

static void (*const parts[PARTS])(void) = {
	[THREADS] = thread_part, [FORKS] = fork_part, [EXECS] = exec_part, [SPAWNS] = spawn_part, [STOPS] = stop_part,
	[HEADLESS] = headless_part, [THREADED_EXECS] = threaded_exec_part, [DEEP] = deep, [SIGNALS] = signal_part,
};

static void finish(const pid_t *children)
{
	shared->over = 1;
	for (int i = 0; i < LEADER; i++)
		if (children[i] != 0)
			expect_exit(children[i], i == HEADLESS ? 7 : 0, "part");
	printf("ok\n");
	exit(0);
}

static void answer(void)
{
	for (int i = 0; i < PARTS; i++)
		printf("%lu ", shared->rounds[i]);
	printf("\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	pid_t children[PARTS] = { 0 };
	if (argc > 2 && strcmp(argv[1], "exit") == 0)
		return atoi(argv[2]);
	readlink("/proc/self/exe", self, sizeof(self) - 1);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < LEADER; i++) {
		if (argc > 1 && atoi(argv[1]) != i)
			continue;
		children[i] = fork_bound();
		if (children[i] == 0) {
			parts[i]();
			_exit(0);
		}
	}
	nap(50000);
	printf("ready\n%p\n", (void *)shared);
	fflush(stdout);
	for (;;) {
		struct pollfd input = { 0, POLLIN, 0 };
		char command;
		int result = poll(&input, 1, 3);
		check(result >= 0, "poll of the leader: %m");
		shared->rounds[LEADER]++;
		if (result == 0)
			continue;
		if (read(0, &command, 1) != 1 || command == 'q')
			finish(children);
		else if (command == 'c')
			answer();
	}
}
