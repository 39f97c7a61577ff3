/* Proves that a program that has disabled huge pages (PR_SET_THP_DISABLE) has no huge pages after a
 * restore. 200 pages of 2 GiB contain data, and only these pages are in memory. Without
 * PR_SET_THP_DISABLE, the mapping would have huge pages. */
#include "victim.h"
#include "victim_memory.h"

#define BYTES (2ull << 30)
#define HUGE (2ull << 20)
#define TOUCHED 200u
/* Far below 400 MiB, the size of 200 huge pages. */
#define RESIDENT_KIB_MAX (64u * 1024)

static struct victim_area area = { .name = "sparse", .length = BYTES };

/* Returns an address in huge page `i`. One touched page for each huge page, so that each could
 * become huge. */
static unsigned char *touched_page(unsigned i)
{
	return area.at + i * HUGE + (victim_mix(i) % (HUGE / VICTIM_PAGE)) * VICTIM_PAGE;
}

static void setup(void)
{
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
		victim_unsupported("PR_SET_THP_DISABLE: %m");
	area.at = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (madvise(area.at, BYTES, MADV_HUGEPAGE) != 0)
		victim_unsupported("MADV_HUGEPAGE: %m");
	for (unsigned i = 0; i < TOUCHED; i++)
		victim_fill(touched_page(i), VICTIM_PAGE, i);
	victim_area_remember(&area);
}

static void work(void)
{
	unsigned i = (unsigned)(victim_ticks % TOUCHED);
	check(victim_differs(touched_page(i), VICTIM_PAGE, i) < 0, "page %u is wrong", i);
	victim_fill(touched_page(i), VICTIM_PAGE, i);
}

static void verify(void)
{
	unsigned long resident = victim_status_number("VmRSS");
	check(resident < RESIDENT_KIB_MAX, "%lu KiB are resident", resident);
	check(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1, "huge pages are no longer disabled");
	for (unsigned i = 0; i < TOUCHED; i++)
		check(victim_differs(touched_page(i), VICTIM_PAGE, i) < 0, "page %u is wrong", i);
	victim_area_check_description(&area);
}

static void sabotage(void)
{
	touched_page(123)[4095] ^= 0x80;
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
