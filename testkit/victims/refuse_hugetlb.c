/* Maps a memfd with pages of hugetlbfs. The mapping reserves no page, because most machines have no such
 * pages. */
#include "victim_memory.h"

#include <sys/mman.h>

#define BYTES (4u << 20)

static struct victim_area area = { .name = "hugetlb", .length = BYTES };

static void setup(void)
{
	int file = memfd_create("huge", MFD_HUGETLB | MFD_CLOEXEC);
	if (file < 0)
		victim_unsupported("MFD_HUGETLB: %m");
	must(ftruncate(file, BYTES));
	area.at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
	if (area.at == MAP_FAILED)
		victim_unsupported("mmap of a hugetlb file: %m");
	must(close(file));
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
