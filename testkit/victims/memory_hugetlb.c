/* Has a mapping of hugetlbfs pages. The mapping reserves no page, because most machines have no
 * such pages. Only its flags matter. */
#include "victim_memory.h"

#define BYTES (4u << 20)

static struct victim_area area = { .name = "hugetlb", .length = BYTES };

static void setup(void)
{
	area.at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
	if (area.at == MAP_FAILED)
		victim_unsupported("MAP_HUGETLB: %m");
	victim_area_remember(&area);
	check(strstr(area.description, " ht") != NULL, "not hugetlb: [%s]", area.description);
}

static void verify(void)
{
	victim_area_check_description(&area);
}

static void sabotage(void)
{
	must(mprotect(area.at, BYTES, PROT_READ));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
