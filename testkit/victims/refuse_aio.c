/* Has an asynchronous I/O context (io_setup). */
#include "victim.h"

#include <linux/aio_abi.h>

static aio_context_t context;

static void setup(void)
{
	if (syscall(SYS_io_setup, 16, &context) != 0)
		victim_unsupported("io_setup: %m");
}

static void verify(void)
{
	struct io_event event;
	struct timespec at_once = { 0, 0 };
	check(syscall(SYS_io_getevents, context, 0, 1, &event, &at_once) == 0, "io_getevents: %m");
}

static void sabotage(void)
{
	must(syscall(SYS_io_destroy, context));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
