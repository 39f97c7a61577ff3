/* Proves that a mapping that grows downwards (MAP_GROWSDOWN) is restored with its grown size and
 * its content. It still grows when the page below is touched. */
#include "victim.h"
#include "victim_memory.h"

#define INITIAL_PAGES 4u
#define GROWN_PAGES 20u
#define MORE_PAGES 40u
#define HOLE_BYTES (16u << 20)

static struct victim_area area = { .name = "growing", .seed = 5 };
static unsigned char *end;

static void touch_down_to(unsigned pages)
{
	for (unsigned page = 1; page <= pages; page++)
		*(volatile unsigned char *)(end - page * VICTIM_PAGE) += 0;
}

static void setup(void)
{
	unsigned char *hole = victim_place(HOLE_BYTES);
	end = hole + HOLE_BYTES;
	unsigned char *top = end - INITIAL_PAGES * VICTIM_PAGE;
	unsigned char *got = mmap(top, INITIAL_PAGES * VICTIM_PAGE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0);
	check(got == top, "mmap: %m");
	touch_down_to(GROWN_PAGES);
	area.at = end - GROWN_PAGES * VICTIM_PAGE;
	area.length = GROWN_PAGES * VICTIM_PAGE;
	victim_fill(area.at, area.length, area.seed);
	victim_area_remember(&area);
}

static void work(void)
{
	victim_area_check_content(&area);
	area.seed++;
	victim_fill(area.at, area.length, area.seed);
}

static void verify(void)
{
	victim_area_check_description(&area);
	check(strstr(area.description, " gd") != NULL, "the area does not grow: [%s]", area.description);
	victim_area_check_content(&area);
}

static void sabotage(void)
{
	must(munmap(area.at, VICTIM_PAGE));
}

static void finish(void)
{
	char now[VICTIM_DESCRIPTION_MAX];
	unsigned long start = 0;
	touch_down_to(MORE_PAGES);
	victim_describe(end - 1, now);
	check(sscanf(now, "%lx-", &start) == 1 && start <= (uintptr_t)(end - MORE_PAGES * VICTIM_PAGE),
	      "the area did not grow: [%s]", now);
	victim_check_zero("fresh pages", end - MORE_PAGES * VICTIM_PAGE, (MORE_PAGES - GROWN_PAGES) * VICTIM_PAGE);
	victim_area_check_content(&area);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
