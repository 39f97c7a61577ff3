/* A program that blocks all signals in all threads, and counts the SIGURG signals that it waits
 * for.
 *
 * Prints "ready". Then it prints "got N" for each SIGURG, or "lost" if none arrives within ten
 * seconds. If argv[1] is "process", the leader reads the signals from a signalfd, and the other
 * threads are in pause(2). If argv[1] is "thread", a second thread waits for the signals, and first
 * prints its tid. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define IDLE 4

static sigset_t urgent;
static const struct timespec patience = { .tv_sec = 10 };

static void say(int came, int count)
{
	if (came)
		printf("got %d\n", count);
	else
		puts("lost");
	fflush(stdout);
}

static void *idle(void *argument)
{
	for (;;)
		pause();
	return argument;
}

static void *wait_for_own(void *argument)
{
	printf("%ld\n", syscall(SYS_gettid));
	fflush(stdout);
	for (int count = 1;; count++) {
		time_t until = time(NULL) + patience.tv_sec;
		int got;
		while ((got = sigtimedwait(&urgent, NULL, &patience)) != SIGURG && errno == EINTR && time(NULL) < until)
			;
		say(got == SIGURG, count);
	}
	return argument;
}

int main(int argc, char **argv)
{
	sigset_t all;
	pthread_t thread;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	sigemptyset(&urgent);
	sigaddset(&urgent, SIGURG);
	puts("ready");
	fflush(stdout);
	if (argc > 1 && !strcmp(argv[1], "thread")) {
		pthread_create(&thread, NULL, wait_for_own, NULL);
		idle(NULL);
	}
	for (int i = 0; i < IDLE; i++)
		pthread_create(&thread, NULL, idle, NULL);
	int fd = signalfd(-1, &urgent, SFD_CLOEXEC);
	struct signalfd_siginfo information;
	struct pollfd waited = { .fd = fd, .events = POLLIN };
	for (int count = 1;; count++) {
		int came;
		while ((came = poll(&waited, 1, patience.tv_sec * 1000)) < 0 && errno == EINTR)
			;
		say(came == 1 && read(fd, &information, sizeof(information)) == sizeof(information), count);
	}
}
