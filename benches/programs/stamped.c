/* Writes random pages at a given rate, and checks all pages on request.
 *
 * Usage: stamped MIB PAGES HZ READY VERDICT. The program fills MIB mebibytes, and then creates the file READY. HZ times
 * per second, it writes PAGES pages. At SIGUSR1, it checks the content of each page, and writes "good" or "bad" to the
 * file VERDICT. The words of a page are computed from its index and from the number of writes to it. A separate array
 * has these numbers of writes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t asked;
static unsigned long *pages;
static unsigned *counts;

static void ask(int signal) { asked = signal; }

static unsigned long mix(unsigned long x)
{
	x ^= x >> 31, x *= 0x7fb5d329728ea185UL, x ^= x >> 27, x *= 0x81dadef4bc2dd44dUL;
	return x ^ x >> 33;
}

static void stamp(unsigned long page)
{
	unsigned long *words = pages + page * 512, seed = mix(page << 32 | ++counts[page]);
	for (int word = 0; word < 512; word++)
		words[word] = seed += 0x9e3779b97f4a7c15UL;
}

static int is_good(unsigned long page)
{
	unsigned long *words = pages + page * 512, seed = mix(page << 32 | counts[page]);
	for (int word = 0; word < 512; word++)
		if (words[word] != (seed += 0x9e3779b97f4a7c15UL))
			return 0;
	return 1;
}

static void answer(const char *path, unsigned long count)
{
	unsigned long wrong = 0;
	for (unsigned long page = 0; page < count; page++)
		wrong += !is_good(page);
	int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
	if (write(file, wrong ? "bad" : "good", wrong ? 3 : 4) < 0)
		_exit(9);
	close(file);
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	unsigned long count = strtoull(argv[1], 0, 10) << 8, dirty = strtoull(argv[2], 0, 10), state = 1;
	long period_ns = 1000000000L / strtol(argv[3], 0, 10);
	pages = mmap(0, count * 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	counts = mmap(0, count * 4, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sigaction action = { .sa_handler = ask };
	sigaction(SIGUSR1, &action, 0);
	for (unsigned long page = 0; page < count; page++)
		stamp(page);
	close(open(argv[4], O_CREAT | O_WRONLY, 0600));
	for (;;) {
		struct timespec pause = { 0, period_ns };
		nanosleep(&pause, 0);
		if (asked)
			answer(argv[5], count), asked = 0;
		for (unsigned long number = 0; number < dirty; number++)
			state = mix(state + 0x9e3779b97f4a7c15UL), stamp(state % count);
	}
}
