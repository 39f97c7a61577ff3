/* Proves that registrations for expedited memory barriers are restored: a private barrier still
 * works. */
#include "victim.h"

#include <linux/membarrier.h>

static bool registered;

static int membarrier_call(int command)
{
	return (int)syscall(SYS_membarrier, command, 0, 0);
}

static void setup(void)
{
	if (membarrier_call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0)
		victim_unsupported("membarrier");
	registered = true;
}

static void work(void)
{
	check(membarrier_call(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0, "a private barrier failed: %s", strerror(errno));
}

static void verify(void)
{
	work();
	check(registered, "the registration is gone");
}

/* A registration cannot be removed, so the victim damages its own variable. */
static void sabotage(void)
{
	registered = false;
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
