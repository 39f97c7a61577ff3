/* Proves that thousands of eventfds are restored, each with its counter. The kernel gives all
 * eventfds the same inode number. Their identification must not take quadratic time. */
#include "victim.h"

#include <sys/eventfd.h>
#include <sys/resource.h>

#define COUNT 4000

static int counters[COUNT];

static void setup(void)
{
	struct rlimit limit;
	must(getrlimit(RLIMIT_NOFILE, &limit));
	if (limit.rlim_max < COUNT + 100)
		victim_unsupported("%d descriptors", COUNT);
	limit.rlim_cur = limit.rlim_max;
	must(setrlimit(RLIMIT_NOFILE, &limit));
	for (int i = 0; i < COUNT; i++)
		counters[i] = must(eventfd((unsigned)i + 1, EFD_NONBLOCK));
}

static void verify(void)
{
	for (int i = 0; i < COUNT; i++) {
		uint64_t value = 0;
		check(read(counters[i], &value, sizeof(value)) == sizeof(value), "eventfd %d: %m", i);
		check(value == (uint64_t)i + 1, "eventfd %d holds %llu", i, (unsigned long long)value);
		check(write(counters[i], &value, sizeof(value)) == sizeof(value), "eventfd %d: %m", i);
	}
}

static void sabotage(void)
{
	uint64_t one = 1;
	check(write(counters[COUNT / 2], &one, sizeof(one)) == sizeof(one), "eventfd write: %m");
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
