/* A process tree that continuously forks, executes programs and creates threads. The test kills it
 * meanwhile.
 *
 * Protocol: this process is the subreaper of the tree. For each line from stdin, it starts a tree
 * and prints the pid of the root. It prints `gone` when it has reaped all processes of the tree. */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN_MAX 3
#define DEPTH_MAX 2

static char self[4096];
static __thread unsigned long state;

static unsigned long draw(unsigned long below)
{
	if (state == 0)
		state = (unsigned long)gettid() * 2654435761u + 1;
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return state % below;
}

static void nap(long us)
{
	nanosleep(&(struct timespec){ 0, us * 1000 }, NULL);
}

static void *brief(void *unused)
{
	nap(draw(200));
	return unused;
}

/* Repeatedly creates a thread and joins it. */
static void *creator(void *unused)
{
	for (;;) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, brief, NULL) == 0)
			pthread_join(thread, NULL);
		nap(draw(200));
	}
	return unused;
}

static void *exec_in_thread(void *unused)
{
	execl(self, self, "exit", NULL);
	return unused;
}

static void spawn(void)
{
	char *arguments[] = { self, "exit", NULL }, *environment[] = { NULL };
	pid_t child;
	posix_spawn(&child, self, NULL, NULL, arguments, environment);
}

__attribute__((noreturn)) static void branch(int depth)
{
	pthread_t thread;
	int children = 0;
	if (draw(2) == 0)
		pthread_create(&thread, NULL, creator, NULL);
	for (unsigned long rounds = draw(100); depth == 0 || rounds > 0; rounds--) {
		if (children < CHILDREN_MAX) {
			children++;
			if (draw(6) == 0) {
				spawn();
			} else if (fork() == 0) {
				state = 0;
				if (depth < DEPTH_MAX && draw(2) == 0)
					branch(depth + 1);
				nap(draw(300));
				if (draw(4) == 0) {
					pthread_create(&thread, NULL, exec_in_thread, NULL);
					pthread_join(thread, NULL);
				}
				_exit(0);
			}
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			children--;
		nap(draw(300));
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	char line[16];
	if (argc > 1 && strcmp(argv[1], "exit") == 0)
		return 0;
	readlink("/proc/self/exe", self, sizeof(self) - 1);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		pid_t root = fork();
		if (root == 0) {
			state = 0;
			branch(0);
		}
		printf("%d\n", root);
		fflush(stdout);
		while (waitpid(-1, NULL, 0) > 0)
			continue;
		printf("gone\n");
		fflush(stdout);
	}
	return 0;
}
