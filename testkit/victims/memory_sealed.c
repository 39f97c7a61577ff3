/* Proves that sealed memory (mseal, Linux 6.10) is restored with its content and its seal. */
#include "victim_memory.h"

#define BYTES (2 * VICTIM_PAGE)

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static struct victim_area area = { .name = "sealed", .length = BYTES };

static void setup(void)
{
	area.at = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	victim_fill(area.at, BYTES, 1);
	if (syscall(SYS_mseal, area.at, BYTES, 0) != 0)
		victim_unsupported("mseal: %m");
	victim_area_remember(&area);
	if (strstr(area.description, " sl") == NULL)
		victim_unsupported("the flag of sealed memory in smaps");
}

static void verify(void)
{
	check(victim_differs(area.at, BYTES, 1) < 0, "the area has another content");
	victim_area_check_description(&area);
	must_fail_with(mprotect(area.at, VICTIM_PAGE, PROT_READ), EPERM);
}

static void sabotage(void)
{
	area.at[7] ^= 1;
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
