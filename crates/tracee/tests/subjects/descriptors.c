/* A program that detects if a tracer closes one of its descriptors. One thread continuously opens
 * and closes descriptors. It has a higher priority than the other threads. When a tracer of these
 * threads dies, this thread therefore takes each free descriptor number before the other threads
 * run.
 *
 * Prints "ready", and reads commands from stdin. "c" prints the numbers of rounds of the threads.
 * "q" prints "ok" and ends the program with status 0. After an error, the program prints "wrong:
 * ..." and exits with 1. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Number of descriptors that are open at the same time. */
#define HELD 16

enum { LEADER, SPINNER, OPENER, PLACES };

static volatile unsigned long rounds[PLACES];

__attribute__((noreturn, format(printf, 1, 2))) static void wrong(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fputs("wrong: ", stdout);
	vprintf(format, args);
	puts("");
	fflush(stdout);
	_exit(1);
}

#define check(condition, ...) do { if (!(condition)) wrong(__VA_ARGS__); } while (0)

static void on_crash(int signal, siginfo_t *info, void *context)
{
	(void)context;
	wrong("signal %d at %p", signal, info->si_addr);
}

/* Gives the calling thread the lowest priority: all other ready threads run first. */
static void step_back(void)
{
	struct sched_param none = { 0 };
	check(sched_setscheduler(0, SCHED_IDLE, &none) == 0, "sched_setscheduler: %m");
}

static void *spinner(void *unused)
{
	step_back();
	for (;; rounds[SPINNER]++)
		for (volatile int i = 0; i < 20000; i++)
			continue;
	return unused;
}

static void *opener(void *unused)
{
	for (;; rounds[OPENER]++) {
		int held[HELD];
		for (int i = 0; i < HELD; i++) {
			held[i] = open("/dev/null", O_WRONLY | O_CLOEXEC);
			check(held[i] >= 0, "open: %m");
		}
		/* The other threads run while all descriptors are open. */
		if (rounds[OPENER] % 16 == 0)
			usleep(500);
		for (int i = 0; i < HELD; i++) {
			struct stat found;
			check(fstat(held[i], &found) == 0 && found.st_rdev == makedev(1, 3),
			      "descriptor %d changed: %m", held[i]);
			check(close(held[i]) == 0, "close(%d): %m", held[i]);
		}
	}
	return unused;
}

int main(void)
{
	struct sigaction crash = { .sa_sigaction = on_crash, .sa_flags = SA_SIGINFO };
	int fatal[] = { SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGSYS, SIGFPE };
	pthread_t thread;
	for (unsigned i = 0; i < sizeof(fatal) / sizeof(*fatal); i++)
		sigaction(fatal[i], &crash, NULL);
	check(pthread_create(&thread, NULL, spinner, NULL) == 0, "pthread_create");
	check(pthread_create(&thread, NULL, opener, NULL) == 0, "pthread_create");
	step_back();
	puts("ready");
	fflush(stdout);
	for (;; rounds[LEADER]++) {
		struct pollfd input = { 0, POLLIN, 0 };
		char command;
		int result = poll(&input, 1, 3);
		check(result >= 0, "poll: %m");
		if (result == 0)
			continue;
		if (read(0, &command, 1) != 1)
			return 0;
		if (command == 'q') {
			puts("ok");
			return 0;
		}
		for (int i = 0; i < PLACES; i++)
			printf("%lu ", rounds[i]);
		puts("");
		fflush(stdout);
	}
}
