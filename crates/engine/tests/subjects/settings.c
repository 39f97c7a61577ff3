/* A program that changes attributes that only its own threads can read, one attribute in each step.
 *
 * Owns: two threads. A thread changes an attribute when it receives its signal, and sleeps otherwise.
 * Invariants: after the last step, each attribute has been changed, and some have been changed back.
 * Does not: use the attributes.
 *
 * Usage: settings FILE. SIGUSR1 starts the next step. The program writes the number of completed
 * steps to FILE. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

/* Missing in older headers. */
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

static int file;
static atomic_int done;
static char stacks[2][2][65536];
static int words[2];

static void handle(int signal)
{
	(void)signal;
}

static void wait_for_step(int signal)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, signal);
	/* A stop by a tracer also ends this call. */
	while (sigwaitinfo(&set, NULL) != signal)
		continue;
}

static void set_stack(int thread, int which)
{
	stack_t stack = { .ss_sp = stacks[thread][which], .ss_size = sizeof(stacks[thread][which]) };
	if (sigaltstack(&stack, NULL))
		_exit(3);
}

/* Changes an attribute of the calling thread. Returns whether the step exists. */
static int change_own(int thread, int step)
{
	switch (step) {
	case 0: set_stack(thread, 0); return 1;
	case 1: set_stack(thread, 1); return 1;
	case 2: prctl(PR_SET_PDEATHSIG, SIGCONT); return 1;
	case 3: prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0); return 1;
	case 4: syscall(SYS_set_tid_address, &words[thread]); return 1;
	case 5: prctl(PR_SET_KEEPCAPS, 1); return 1;
	case 6: prctl(PR_SET_PDEATHSIG, 0); return 1;
	case 7: prctl(PR_SET_TSC, PR_TSC_SIGSEGV); return 1;
	case 8: prctl(PR_SET_TSC, PR_TSC_ENABLE); return 1;
	}
	return 0;
}

static int change_process(int step)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = step == 1 ? SA_RESTART : 0 };
	struct itimerval soon = { .it_value = { .tv_sec = 100000 } }, never = { 0 };
	switch (step) {
	case 0:
	case 1: sigaction(SIGUSR2, &action, NULL); return 1;
	case 2: signal(SIGHUP, SIG_IGN); return 1;
	case 3: prctl(PR_SET_CHILD_SUBREAPER, 1); return 1;
	case 4: setitimer(ITIMER_VIRTUAL, &soon, NULL); return 1;
	case 5: setitimer(ITIMER_VIRTUAL, &never, NULL); return 1;
	case 6: syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0); return 1;
	case 7: prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0); return 1;
	case 8: signal(SIGHUP, SIG_DFL); return 1;
	case 9: prctl(PR_SET_DUMPABLE, 0); return 1;
	case 10: prctl(PR_SET_DUMPABLE, 1); return 1;
	}
	return 0;
}

static void *other(void *argument)
{
	(void)argument;
	for (int step = 0;; step++) {
		wait_for_step(SIGURG);
		change_own(1, step);
		atomic_fetch_add(&done, 1);
	}
	return NULL;
}

static void say(int step)
{
	char text[32];
	int length = snprintf(text, sizeof(text), "%-8d\n", step);
	if (pwrite(file, text, length, 0) != length)
		_exit(4);
}

int main(int argc, char **argv)
{
	sigset_t set;
	pthread_t thread;
	if (argc != 2 || (file = open(argv[1], O_WRONLY | O_CREAT, 0600)) < 0)
		return 1;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGURG);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (pthread_create(&thread, NULL, other, NULL))
		return 1;
	for (int step = 0;; step++) {
		say(step);
		wait_for_step(SIGUSR1);
		if (change_process(step))
			continue;
		int own = step - 11;
		if (own % 2 == 0) {
			change_own(0, own / 2);
			continue;
		}
		int before = atomic_load(&done);
		pthread_kill(thread, SIGURG);
		while (atomic_load(&done) == before)
			usleep(1000);
	}
}
