/* Closes a listening port, a locked file and a program file, and opens them again at once. In every eighth round, it
 * also executes the program file that it has just written.
 *
 * If another process has a duplicate of such a descriptor, the next operation fails: the port or the lock is still
 * taken, or the program file is busy (ETXTBSY).
 *
 * Usage: closes SECONDS, in an empty directory. Prints the number of rounds, and how often each operation failed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void require(int is_well)
{
	if (!is_well) {
		perror("closes");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static char code[1 << 20];
	unsigned rounds = 0, starts = 0, port = 0, lock = 0, write_busy = 0, start_busy = 0;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	if (argc != 2)
		return 2;
	int source = open("/bin/true", O_RDONLY);
	ssize_t bytes = read(source, code, sizeof(code));
	require(source >= 0 && bytes > 0 && !close(source));
	for (double end = now() + atof(argv[1]); now() < end; rounds++) {
		int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
		require(listener >= 0 && !setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)));
		if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 1))
			require(errno == EADDRINUSE && ++port);
		else
			require(!getsockname(listener, (struct sockaddr *)&address, &length));
		int locked = open("locked", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		require(locked >= 0);
		if (flock(locked, LOCK_EX | LOCK_NB))
			require(errno == EWOULDBLOCK && ++lock);
		int program = open("written", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
		require(program >= 0 ? write(program, code, (size_t)bytes) == bytes : errno == ETXTBSY && ++write_busy);
		struct timespec time = { .tv_nsec = (100 + rand() % 900) * 1000 };
		nanosleep(&time, NULL);
		require(!close(listener) && !close(locked) && (program < 0 || !close(program)));
		if (rounds % 8)
			continue;
		char *arguments[] = { "written", NULL }, *none[] = { NULL };
		pid_t child;
		int why = posix_spawn(&child, "./written", NULL, NULL, arguments, none);
		starts++;
		require(why ? why == ETXTBSY && ++start_busy : waitpid(child, NULL, 0) == child);
	}
	printf("of %u: port taken %u, lock taken %u, not to be written %u; of %u: not to be started %u\n", rounds, port,
	       lock, write_busy, starts, start_busy);
}
