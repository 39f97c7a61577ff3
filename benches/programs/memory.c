/* Fills memory with data that cannot be compressed, creates the file READY, and sleeps.
 *
 * Usage: memory BYTES READY [CLOCK]. CLOCK is the path of a file of one page. With CLOCK, the program does not sleep,
 * but reads the clock in a loop. While the first word of CLOCK is zero, the program stores the end of the next gap of
 * more than 50 ms there (CLOCK_MONOTONIC, ns). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	size_t bytes = strtoull(argv[1], 0, 10);
	unsigned long state = 88172645463325252UL, *words = bytes ? mmap(0, bytes, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : 0;
	for (size_t i = 0; i < bytes / 8; i++) {
		state ^= state << 13, state ^= state >> 7, state ^= state << 17;
		words[i] = state;
	}
	close(open(argv[2], O_CREAT | O_WRONLY, 0600));
	if (argc == 3)
		for (;;)
			usleep(10000);
	volatile long *end = mmap(0, 4096, 3, MAP_SHARED, open(argv[3], O_RDWR), 0);
	struct timespec now;
	for (long last = 0, at;; last = at) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		at = now.tv_sec * 1000000000 + now.tv_nsec;
		if (at - last > 50000000 && !*end)
			*end = at;
	}
}
