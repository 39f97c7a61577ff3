/* Reads the clock in a loop and records the gaps between two readings. It also writes to pages at a given rate.
 *
 * Options:
 *   mib=       resident memory
 *   rate=      pages that all threads together write per second
 *   threads=   number of threads; each thread except the first sleeps, and writes to one page every 10 ms
 *   areas=     number of mappings that contain the memory
 *   least_ns=  shorter gaps are not recorded
 *   order=     random, or walk: pages one after the other
 *   writer=1   an additional thread writes the pages every millisecond, and the first thread only reads the clock
 *   out=       the record: pairs of the beginning of a gap (CLOCK_MONOTONIC) and its length, in ns
 *
 * At the end, the program checks each page except those of the sleeping threads: the last word of a page must match its
 * first word, and the first word must contain the index of the page. */
#include "subject.h"

#define GAPS_MAX (1ul << 22)
#define NAP_NS 10000000
#define NAPS_EACH_SECOND (1000000000 / NAP_NS)

static unsigned char *start;
static uint64_t pages, stride, own_pages;
static uint32_t serial;

static uint64_t *page(uint64_t index)
{
	return (uint64_t *)(start + index * stride / pages * PAGE);
}

/* Returns the last word that belongs to the first word of a page. */
static uint64_t partner(uint64_t first)
{
	return (first ^ first >> 29) * 0xbf58476d1ce4e5b9u;
}

static void lay_out(uint64_t areas)
{
	/* The kernel must not merge neighbouring mappings. Therefore, every second mapping gets the flag MADV_DONTDUMP. */
	stride = pages > areas ? pages : areas;
	start = memory(stride * PAGE);
	for (uint64_t i = 1; i < areas; i += 2) {
		uint64_t from = stride * i / areas, to = stride * (i + 1) / areas;
		if (madvise(start + from * PAGE, (to - from) * PAGE, MADV_DONTDUMP))
			fail("too many areas");
	}
	for (uint64_t i = 0; i < pages; i++)
		for (uint64_t word = 0; word < PAGE / 8; word++)
			page(i)[word] = word < 511 ? i * 512 + word : partner(i * 512);
}

static void *doze(void *argument)
{
	struct timespec nap = { .tv_nsec = NAP_NS };
	uint64_t *own = page(own_pages + (uintptr_t)argument);
	while (!is_over) {
		nanosleep(&nap, 0);
		own[1]++;
	}
	return 0;
}

/* Writes the first and the last word of one page that does not belong to a sleeping thread. */
static void dirty(int in_order)
{
	static uint64_t state = 88172645463325252u, next;
	uint64_t index = in_order ? next++ % own_pages : draw(&state) % own_pages;
	page(index)[0] = index * 512 + ((uint64_t)++serial << 32);
	page(index)[511] = partner(page(index)[0]);
}

static uint64_t writer_rate, writer_written;
static int writer_in_order;

static void *write_alone(void *argument)
{
	struct timespec nap = { .tv_nsec = 1000000 };
	uint64_t began = clock_ns(CLOCK_MONOTONIC), most = writer_rate / 500 + 1;
	(void)argument;
	while (!is_over) {
		nanosleep(&nap, 0);
		uint64_t due = (clock_ns(CLOCK_MONOTONIC) - began) / 1000 * writer_rate / 1000000;
		for (uint64_t i = 0; i < most && writer_written < due; i++, writer_written++)
			dirty(writer_in_order);
	}
	return 0;
}

static void watch(struct pairs *gaps, uint64_t rate, uint64_t least, int in_order)
{
	uint64_t began = clock_ns(CLOCK_MONOTONIC), before = began, written = 0;
	while (!is_over) {
		uint64_t now = clock_ns(CLOCK_MONOTONIC);
		if (now - before >= least)
			put(gaps, before, now - before);
		before = now;
		/* At most one page is written between two readings. Writes that a gap has delayed are made up one by one. */
		if (written < (now - began) / 1000 * rate / 1000000) {
			dirty(in_order);
			written++;
		}
	}
	/* The last pair of the record contains 0 and the number of written pages. */
	put(gaps, 0, written + writer_written);
}

int main(int argc, char **argv)
{
	uint64_t rate = number(argc, argv, "rate", 1000), threads = number(argc, argv, "threads", 1);
	pages = number(argc, argv, "mib", 64) << 8;
	if (threads < 1 || pages < 2 * threads)
		fail("threads");
	own_pages = pages - threads;
	lay_out(number(argc, argv, "areas", 1));
	struct pairs gaps = pairs_of(GAPS_MAX);
	uint64_t others = (threads - 1) * NAPS_EACH_SECOND;
	announce();
	pthread_t *ids = calloc(threads, sizeof(*ids));
	for (uint64_t i = 1; i < threads; i++)
		if (pthread_create(&ids[i], 0, doze, (void *)(uintptr_t)i))
			fail("no thread");
	int in_order = !strcmp(option(argc, argv, "order", "random"), "walk");
	uint64_t own_rate = rate > others ? rate - others : 0;
	pthread_t writer;
	int has_writer = number(argc, argv, "writer", 0) != 0;
	if (has_writer) {
		writer_rate = own_rate;
		writer_in_order = in_order;
		own_rate = 0;
		if (pthread_create(&writer, 0, write_alone, 0))
			fail("no thread");
	}
	watch(&gaps, own_rate, number(argc, argv, "least_ns", 5000), in_order);
	if (has_writer)
		pthread_join(writer, 0);
	for (uint64_t i = 1; i < threads; i++)
		pthread_join(ids[i], 0);
	for (uint64_t i = 0; i < own_pages; i++)
		if ((uint32_t)page(i)[0] != i * 512 || page(i)[511] != partner(page(i)[0]))
			fail("a page");
	write_out(argc, argv, &gaps, 1);
	return 0;
}
