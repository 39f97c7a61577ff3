/* Has memory that is sealed against changes (mseal, Linux 6.10). */
#include "victim_memory.h"

#define BYTES (2 * VICTIM_PAGE)

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static unsigned char *area;

static void setup(void)
{
	char description[VICTIM_DESCRIPTION_MAX];
	area = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	victim_fill(area, BYTES, 1);
	if (syscall(SYS_mseal, area, BYTES, 0) != 0)
		victim_unsupported("mseal: %m");
	victim_describe(area, description);
	if (strstr(description, " sl") == NULL)
		victim_unsupported("the flag of sealed memory in smaps");
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
