/* Threads that work through chunks of a kernel until told to end, and note when each chunk was done (CLOCK_MONOTONIC,
 * ns) and how much processor time the thread had used by then (ns). */
#ifndef KERNEL_H
#define KERNEL_H
#include "subject.h"

#define THREADS_MAX 32
#define CHUNKS_MAX (1ul << 22)

static void chunk(unsigned thread, uint64_t turn);
static unsigned thread_count;
static struct pairs chunks_done[THREADS_MAX];

static void *work(void *argument)
{
	unsigned thread = (unsigned)(uintptr_t)argument;
	for (uint64_t turn = 0; !is_over; turn++) {
		chunk(thread, turn);
		put(&chunks_done[thread], clock_ns(CLOCK_MONOTONIC), clock_ns(CLOCK_THREAD_CPUTIME_ID));
	}
	return 0;
}

static void run_kernel(int argc, char **argv)
{
	pthread_t threads[THREADS_MAX];
	for (unsigned i = 0; i < thread_count; i++)
		chunks_done[i] = pairs_of(CHUNKS_MAX);
	announce();
	for (unsigned i = 1; i < thread_count; i++)
		if (pthread_create(&threads[i], 0, work, (void *)(uintptr_t)i))
			fail("no thread");
	work(0);
	for (unsigned i = 1; i < thread_count; i++)
		pthread_join(threads[i], 0);
	struct pairs ends[THREADS_MAX * 2];
	for (unsigned i = 0; i < thread_count; i++) {
		/* A pair of zeros begins a thread. */
		ends[2 * i] = pairs_of(1);
		put(&ends[2 * i], 0, 0);
		ends[2 * i + 1] = chunks_done[i];
	}
	write_out(argc, argv, ends, thread_count * 2);
}

static void count_threads(int argc, char **argv)
{
	thread_count = (unsigned)number(argc, argv, "threads", 1);
	if (thread_count < 1 || thread_count > THREADS_MAX)
		fail("threads");
}

#endif
