/* Has memory with a protection key (pkey_mprotect). */
#include "victim_memory.h"

#define BYTES (2 * VICTIM_PAGE)

static unsigned char *area;

static void setup(void)
{
	int key = pkey_alloc(0, 0);
	if (key < 0)
		victim_unsupported("pkey_alloc: %m");
	area = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	victim_fill(area, BYTES, 1);
	must(pkey_mprotect(area, BYTES, PROT_READ | PROT_WRITE, key));
}

static void verify(void)
{
	check(victim_differs(area, BYTES, 1) < 0, "the area has another content");
}

static void sabotage(void)
{
	area[7] ^= 1;
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
