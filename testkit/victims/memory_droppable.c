/* Proves that droppable memory (MAP_DROPPABLE, Linux 6.11) is restored as droppable, with the same
 * flags. Each page contains the written data, or zeros. */
#include "victim.h"
#include "victim_memory.h"

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif

#define PAGES 4u
#define BYTES (PAGES * VICTIM_PAGE)
#define SEED 71

static struct victim_area area = { .name = "droppable", .length = BYTES };

static void setup(void)
{
	void *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		victim_unsupported("MAP_DROPPABLE: %m");
	must(munmap(at, BYTES));
	area.at = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
	victim_fill(area.at, BYTES, SEED);
	victim_area_remember(&area);
	check(strstr(area.description, " dp") != NULL, "no flag of droppable memory in [%s]", area.description);
}

static void verify(void)
{
	victim_area_check_description(&area);
	for (size_t page = 0; page < PAGES; page++) {
		const unsigned char *at = area.at + page * VICTIM_PAGE;
		if (at[0] == 0 && at[1] == 0 && at[2] == 0)
			victim_check_zero("a dropped page", at, VICTIM_PAGE);
		else
			for (size_t i = 0; i < VICTIM_PAGE; i++)
				check(at[i] == victim_byte(SEED, page * VICTIM_PAGE + i), "byte %zu of page %zu is wrong", i,
				      page);
	}
}

static void sabotage(void)
{
	area.at[VICTIM_PAGE] = 0;
	area.at[VICTIM_PAGE + 1] = 1;
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
