/* What all subjects of the benches share: options of the form `name=number`, clocks, a record of what was done when,
 * and the way they begin and end.
 *
 * A subject writes `ready` to standard output once its memory is set up, works until SIGTERM, checks its results,
 * writes its record to the file `out=` and ends with 0, or with 1 and a reason on standard error. */
#ifndef SUBJECT_H
#define SUBJECT_H
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul

static volatile sig_atomic_t is_over;

static inline void fail(const char *what)
{
	fprintf(stderr, "wrong: %s\n", what);
	exit(1);
}

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec at;
	clock_gettime(clock, &at);
	return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

/* The value of `name=`, or what it is without one. */
static inline const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
	size_t length = strlen(name);
	for (int i = 1; i < argc; i++)
		if (!strncmp(argv[i], name, length) && argv[i][length] == '=')
			return argv[i] + length + 1;
	return otherwise;
}

static inline uint64_t number(int argc, char **argv, const char *name, uint64_t otherwise)
{
	const char *value = option(argc, argv, name, 0);
	return value ? strtoull(value, 0, 10) : otherwise;
}

static inline uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
	return *state;
}

static inline void *memory(size_t bytes)
{
	void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		fail("no memory");
	return at;
}

static void end_soon(int signal_number)
{
	(void)signal_number;
	is_over = 1;
}

static inline void announce(void)
{
	struct sigaction action = { .sa_handler = end_soon };
	sigaction(SIGTERM, &action, 0);
	if (write(1, "ready\n", 6) != 6)
		fail("nobody listens");
}

/* Pairs of numbers, in memory that is touched only as far as it is used. */
struct pairs {
	uint64_t (*at)[2];
	size_t count, most;
};

static inline struct pairs pairs_of(size_t most)
{
	return (struct pairs){ .at = memory(most * 16), .most = most };
}

static inline void put(struct pairs *to, uint64_t first, uint64_t second)
{
	if (to->count < to->most)
		to->at[to->count][0] = first, to->at[to->count++][1] = second;
}

static inline void write_out(int argc, char **argv, const struct pairs *records, unsigned count)
{
	const char *path = option(argc, argv, "out", "/dev/null");
	FILE *file = fopen(path, "w");
	if (!file)
		fail("the record cannot be written");
	for (unsigned i = 0; i < count; i++)
		if (records[i].count && fwrite(records[i].at, 16, records[i].count, file) != records[i].count)
			fail("the record cannot be written");
	if (fclose(file))
		fail("the record cannot be written");
}

#endif
