/* Many waiting threads and one writing thread. After a kill, some time passes until all threads
 * have ended.
 *
 * Usage: crowd FILE THREADS. FILE contains a line when all threads run. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static volatile unsigned long counts[4096];

static void *wait_for_ever(void *argument)
{
	for (;;)
		pause();
	return argument;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int threads = argc == 3 ? atoi(argv[2]) : 0;
	for (int made = 0; made < threads; made++)
		if (pthread_create(&thread, NULL, wait_for_ever, NULL))
			return 2;
	int file = open(argv[1], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || write(file, "ready\n", 6) != 6)
		return 2;
	close(file);
	for (unsigned long round = 0;; round++)
		counts[round % (sizeof(counts) / sizeof(*counts))]++;
}
