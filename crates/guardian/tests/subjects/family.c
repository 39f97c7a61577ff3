/* A parent and two children with threads, connected by TCP over loopback and by socket pairs.
 *
 * The messages are numbered. If a process misses a message or receives it twice, it aborts. The
 * parent writes a counter to a file. On SIGTERM, it kills its children and exits. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHILDREN = 2 };

static volatile sig_atomic_t told_to_end;

static void end(int signal)
{
	(void)signal;
	told_to_end = 1;
}

static void check(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "family %d: %s\n", getpid(), what);
		abort();
	}
}

/* Sends or receives a whole number. Returns false at the end of the connection. */
static int move(int fd, uint64_t *number, int is_write)
{
	size_t done = 0;
	while (done < sizeof *number) {
		char *at = (char *)number + done;
		ssize_t got = is_write ? send(fd, at, sizeof *number - done, MSG_NOSIGNAL)
				       : recv(fd, at, sizeof *number - done, 0);
		if (got <= 0)
			return 0;
		done += (size_t)got;
	}
	return 1;
}

static void *serve(void *argument)
{
	int fd = (int)(intptr_t)argument;
	uint64_t number;
	for (uint64_t expected = 1; move(fd, &number, 0); expected++) {
		check(number == expected, "a request is missing or came twice");
		/* At the end, the parent kills the client while it may wait for this answer. */
		if (!move(fd, &number, 1)) {
			check(told_to_end, "a client has gone");
			return NULL;
		}
	}
	check(told_to_end, "a connection has ended");
	return NULL;
}

static void *ask(void *argument)
{
	int fd = (int)(intptr_t)argument;
	for (uint64_t number = 1;; number++) {
		uint64_t answer = number;
		if (!move(fd, &answer, 1) || !move(fd, &answer, 0))
			_exit(0);
		check(answer == number, "an answer is missing or came twice");
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
}

static void spawn(void *(*function)(void *), int fd)
{
	pthread_t thread;
	check(!pthread_create(&thread, NULL, function, (void *)(intptr_t)fd), "no thread");
	pthread_detach(thread);
}

static pid_t start_child(int listener, const struct sockaddr_in *address)
{
	int pair[2];
	check(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "no pair");
	pid_t child = fork();
	check(child >= 0, "no child");
	if (child == 0) {
		signal(SIGTERM, SIG_DFL);
		close(listener);
		close(pair[0]);
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		check(!connect(fd, (const struct sockaddr *)address, sizeof *address), "no connection");
		spawn(ask, pair[1]);
		ask((void *)(intptr_t)fd);
	}
	close(pair[1]);
	int fd = accept(listener, NULL, NULL);
	check(fd >= 0, "nobody has connected");
	spawn(serve, fd);
	spawn(serve, pair[0]);
	return child;
}

int main(int argc, char **argv)
{
	check(argc == 2, "needs the path of a file");
	int out = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	check(out >= 0, "no file");
	signal(SIGTERM, end);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	check(!bind(listener, (struct sockaddr *)&address, length) && !listen(listener, CHILDREN), "no listener");
	check(!getsockname(listener, (struct sockaddr *)&address, &length), "no address");
	pid_t children[CHILDREN];
	for (int i = 0; i < CHILDREN; i++)
		children[i] = start_child(listener, &address);
	for (uint64_t count = 1; !told_to_end; count++) {
		dprintf(out, "%d %lu\n", getpid(), (unsigned long)count);
		nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
	}
	for (int i = 0; i < CHILDREN; i++)
		kill(children[i], SIGKILL);
	while (wait(NULL) > 0)
		;
	return 0;
}
