/* Two processes, the first with two threads, that change memory and check it. Each of the three
 * threads is a walker.
 *
 *   walker SAID    For each walker, SAID receives a line `PID ADDRESS`, the address of its step counter.
 *
 * A walker has these values in local variables: the sum of its cells, the state of its random
 * numbers, and its position in a file. If a restore combined registers and memory of different
 * moments, the walker would detect this. On SIGTERM, a process without errors exits with 0. A
 * process that detects an error exits with 1 immediately. SIGUSR1 opens one more descriptor. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CELLS (1 << 13)
#define PAGE 4096
#define FRESH_PAGES 64
#define SHARED_CELLS 2048
#define MARK_BYTES 8

struct walker {
	volatile uint64_t steps;
	uint64_t *cells;
	/* Pages that the walker writes once and then discards. Each page must be zero before it is
	 * written. */
	unsigned char *fresh;
	uint64_t *shared;
	int file;
};

static volatile sig_atomic_t told;

static void tell(int signal)
{
	told = signal;
}

static void open_more(int signal)
{
	(void)signal;
	if (dup(0) < 0)
		_exit(1);
}

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void wrong(const char *what)
{
	fprintf(stderr, "walker %d: %s\n", getpid(), what);
	_exit(1);
}

static void *map(size_t bytes, int flags)
{
	void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
	if (found == MAP_FAILED)
		wrong("mmap");
	return found;
}

static uint64_t sum_of(const uint64_t *cells, size_t count)
{
	uint64_t sum = 0;
	for (size_t at = 0; at < count; at++)
		sum += cells[at];
	return sum;
}

static void *walk(void *argument)
{
	struct walker *walker = argument;
	uint64_t random = 0x9e3779b97f4a7c15ull ^ (uint64_t)(uintptr_t)argument, sum = 0, shared = 0, steps = 0;
	size_t touched = 0;
	off_t position = 0;
	double waves = 0;
	while (!told) {
		for (int step = 0; step < 64; step++) {
			size_t at = next(&random) % CELLS;
			uint64_t value = next(&random);
			sum += value - walker->cells[at];
			walker->cells[at] = value;
			waves = waves * 0.5 + (double)(value & 0xff);
		}
		size_t at = next(&random) % SHARED_CELLS;
		shared += random - walker->shared[at];
		walker->shared[at] = random;
		unsigned char *page = walker->fresh + touched * PAGE;
		for (size_t byte = 0; byte < PAGE; byte++)
			if (page[byte] != 0)
				wrong("a page that was never written has content");
		memset(page, 0x5a, PAGE);
		if (++touched == FRESH_PAGES) {
			if (madvise(walker->fresh, FRESH_PAGES * PAGE, MADV_DONTNEED) != 0)
				wrong("madvise");
			touched = 0;
		}
		/* The file has the same bytes at each position and is never written, so it never
		 * needs a rollback. */
		char mark[MARK_BYTES];
		if (lseek(walker->file, 0, SEEK_CUR) != position)
			wrong("another place in the file");
		if (read(walker->file, mark, MARK_BYTES) != MARK_BYTES || memcmp(mark, "undying\n", MARK_BYTES) != 0)
			wrong("another content of the file");
		position += MARK_BYTES;
		if (position == 64 * MARK_BYTES)
			position = lseek(walker->file, 0, SEEK_SET);
		if (waves < 0 || waves > 512)
			wrong("the floating-point registers");
		walker->steps = ++steps;
		if (steps % 16 == 0 && sum_of(walker->cells, CELLS) != sum)
			wrong("the sum of the cells");
		if (sum_of(walker->shared, SHARED_CELLS) != shared)
			wrong("the sum of the shared cells");
	}
	if (sum_of(walker->cells, CELLS) != sum || walker->steps != steps)
		wrong("the last sum");
	return NULL;
}

static struct walker begin(const char *file)
{
	struct walker walker = {
		.cells = map(CELLS * sizeof(uint64_t), MAP_PRIVATE),
		.fresh = map(FRESH_PAGES * PAGE, MAP_PRIVATE),
		.shared = map(SHARED_CELLS * sizeof(uint64_t), MAP_SHARED),
		.file = open(file, O_RDONLY | O_CLOEXEC),
	};
	if (walker.file < 0)
		wrong("open");
	return walker;
}

int main(int argc, char **argv)
{
	static struct walker walkers[3];
	char marks[4096], line[128];
	if (argc != 2)
		return 2;
	struct sigaction action = { .sa_handler = tell };
	sigaction(SIGTERM, &action, NULL);
	struct sigaction more = { .sa_handler = open_more, .sa_flags = SA_RESTART };
	sigaction(SIGUSR1, &more, NULL);
	snprintf(marks, sizeof(marks), "%s.marks", argv[1]);
	FILE *file = fopen(marks, "w");
	for (int count = 0; count < 64; count++)
		fputs("undying\n", file);
	fclose(file);
	for (int index = 0; index < 3; index++)
		walkers[index] = begin(marks);
	pid_t child = fork();
	if (child == 0) {
		walk(&walkers[2]);
		_exit(0);
	}
	pthread_t thread;
	if (pthread_create(&thread, NULL, walk, &walkers[1]) != 0)
		wrong("pthread_create");
	int said = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	for (int index = 0; index < 3; index++) {
		int length = snprintf(line, sizeof(line), "%d %lu\n", index == 2 ? child : getpid(),
				      (unsigned long)(uintptr_t)&walkers[index].steps);
		if (write(said, line, (size_t)length) != length)
			wrong("write");
	}
	close(said);
	walk(&walkers[0]);
	pthread_join(thread, NULL);
	int status;
	kill(child, SIGTERM);
	if (waitpid(child, &status, 0) != child || status != 0)
		wrong("the child");
	return 0;
}
