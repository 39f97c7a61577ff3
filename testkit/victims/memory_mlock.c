/* Proves that locked memory (mlock, and mlock2 with MLOCK_ONFAULT) is restored as locked. The flags
 * and the locked size that the kernel reports stay the same. */
#include "victim.h"
#include "victim_memory.h"

#define AREA_BYTES (8 * VICTIM_PAGE)

static struct victim_area locked = { .name = "locked", .length = AREA_BYTES, .seed = 1 };
static struct victim_area on_fault = { .name = "locked on fault", .length = AREA_BYTES, .seed = 2 };
static unsigned long locked_kib;

static void map(struct victim_area *area)
{
	area->at = victim_map(AREA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void setup(void)
{
	map(&locked);
	map(&on_fault);
	if (mlock(locked.at, AREA_BYTES) != 0)
		victim_unsupported("mlock: %m");
	must(mlock2(on_fault.at, AREA_BYTES, MLOCK_ONFAULT));
	victim_fill(locked.at, AREA_BYTES, locked.seed);
	victim_fill(on_fault.at, AREA_BYTES, on_fault.seed);
	victim_area_remember(&locked);
	victim_area_remember(&on_fault);
	check(strstr(locked.description, " lo") != NULL, "no lock flag in [%s]", locked.description);
	locked_kib = victim_status_number("VmLck");
}

static void verify(void)
{
	victim_area_check_description(&locked);
	victim_area_check_description(&on_fault);
	victim_area_check_content(&locked);
	victim_area_check_content(&on_fault);
	unsigned long now = victim_status_number("VmLck");
	check(now == locked_kib, "%lu KiB are locked, were %lu", now, locked_kib);
}

static void sabotage(void)
{
	must(munlock(on_fault.at, AREA_BYTES));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
