/* Proves that the execution domain (personality) is restored. */
#include "victim.h"

#include <sys/personality.h>

#define QUERY 0xffffffffu
#define WANTED (ADDR_NO_RANDOMIZE | SHORT_INODE)

static void setup(void)
{
	must(personality(WANTED));
}

static void verify(void)
{
	int now = must(personality(QUERY));
	check(now == (int)WANTED, "personality is %#x, was %#x", (unsigned)now, (unsigned)WANTED);
}

static void sabotage(void)
{
	must(personality(WANTED | WHOLE_SECONDS));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
