/* A program that measures for how long it is stopped.
 *
 * Owns: a thread that writes pages at a constant rate, threads that sleep, and a watching thread. The
 * watching thread reads the clock in a loop, and stores each gap between two reads.
 * Invariants: while it watches, the watching thread allocates no memory and makes no system call.
 * Does not: evaluate the gaps. The test knows when it has stopped the program.
 *
 * Usage: gaps FILE MIB PAGES_PER_SECOND THREADS AREAS PROCESSOR. On SIGTERM, the program writes
 * each gap to FILE and exits. A line has the begin and the length of a gap in nanoseconds of
 * CLOCK_MONOTONIC. THREADS is the number of all threads, and AREAS the number of additional
 * mappings. PROCESSOR is the processor of the watching thread, or -1. */
#define _GNU_SOURCE
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

#define PAGE 4096UL
/* Maximum number of stored gaps: one hour with a hundred gaps per second. */
#define GAPS_MAX 400000
/* Shorter gaps are caused by reading the clock. */
#define GAP_MIN_NS 15000

static struct { uint64_t begin, length; } gaps[GAPS_MAX];
static size_t count;
static volatile sig_atomic_t ends;
static unsigned char *memory;
static size_t pages;
static long rate;

static uint64_t now(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000ULL + at.tv_nsec;
}

static void end(int signal)
{
	(void)signal;
	ends = 1;
}

/* Writes to randomly chosen pages, once per millisecond, at the rate `rate` (pages per second). */
static void *writes(void *argument)
{
	uint64_t random = 88172645463325252ULL, due = now(), left = 0;
	while (!ends) {
		left += rate;
		for (; left >= 1000; left -= 1000) {
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			memory[random % pages * PAGE + random % 512 * 8]++;
		}
		due += 1000000;
		struct timespec until = { due / 1000000000, due % 1000000000 };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		if (now() > due + 100000000)
			due = now();
	}
	return argument;
}

static void *sleeps(void *argument)
{
	while (!ends)
		pause();
	return argument;
}

static void start(void *(*what)(void *))
{
	pthread_t thread;
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 * 1024);
	if (pthread_create(&thread, &small, what, NULL)) {
		perror("pthread_create");
		exit(1);
	}
}

static void watch(void)
{
	uint64_t last = now();
	while (!ends) {
		uint64_t this = now();
		if (this - last > GAP_MIN_NS && count < GAPS_MAX) {
			gaps[count].begin = last;
			gaps[count++].length = this - last;
			this = now();
		}
		last = this;
	}
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "usage: gaps FILE MIB PAGES_PER_SECOND THREADS AREAS PROCESSOR\n");
		return 2;
	}
	pages = atol(argv[2]) * 256;
	rate = atol(argv[3]);
	long threads = atol(argv[4]), areas = atol(argv[5]), processor = atol(argv[6]);
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
	memset(memory, 1, pages * PAGE);
	/* The protection alternates, because the kernel would merge neighbouring mappings of the
	 * same protection. */
	for (long area = 0; area < areas; area++) {
		int protection = area % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
		if (mmap(NULL, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
			return 1;
	}
	memset(gaps, 0, sizeof gaps);
	signal(SIGTERM, end);
	if (rate)
		start(writes);
	for (long more = rate ? 2 : 1; more < threads; more++)
		start(sleeps);
	if (processor >= 0) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET(processor, &set);
		sched_setaffinity(0, sizeof set, &set);
	}
	watch();
	FILE *file = fopen(argv[1], "w");
	if (!file)
		return 1;
	for (size_t index = 0; index < count; index++)
		fprintf(file, "%llu %llu\n", (unsigned long long)gaps[index].begin,
			(unsigned long long)gaps[index].length);
	return fclose(file) ? 1 : 0;
}
