/* Has a perf event that counts. */
#include "victim.h"

#include <linux/perf_event.h>

static int counter;
static uint64_t last;

static void setup(void)
{
	struct perf_event_attr attributes = { .type = PERF_TYPE_SOFTWARE, .size = sizeof(attributes),
					      .config = PERF_COUNT_SW_TASK_CLOCK };
	counter = (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (counter < 0)
		victim_unsupported("perf_event_open: %m");
}

static void verify(void)
{
	uint64_t now = 0;
	check(read(counter, &now, sizeof(now)) == sizeof(now), "read: %m");
	check(now > last, "the counter stands still");
	last = now;
}

static void sabotage(void)
{
	close(counter);
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
