/* Proves that private and shared anonymous memory with pages of hugetlbfs is restored. Content is checked
 * only if the machine has free pages. Most machines have none, and then only the mappings are checked. */
#include "victim_memory.h"

#define BYTES (4u << 20)
#define ANONYMOUS (MAP_ANONYMOUS | MAP_HUGETLB)

static struct victim_area own = { .name = "private hugetlb", .length = BYTES };
static struct victim_area shared = { .name = "shared hugetlb", .length = BYTES };
static bool has_pages;

static unsigned char *map(int flags)
{
	unsigned char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags | ANONYMOUS, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void setup(void)
{
	own.at = map(MAP_PRIVATE);
	shared.at = own.at == NULL ? NULL : map(MAP_SHARED);
	has_pages = shared.at != NULL;
	if (!has_pages) {
		if (own.at != NULL)
			munmap(own.at, BYTES);
		own.at = map(MAP_PRIVATE | MAP_NORESERVE);
		shared.at = map(MAP_SHARED | MAP_NORESERVE);
	}
	if (own.at == NULL || shared.at == NULL)
		victim_unsupported("MAP_HUGETLB: %m");
	if (has_pages) {
		victim_fill(own.at + VICTIM_PAGE, VICTIM_PAGE, 1);
		victim_fill(shared.at + BYTES - VICTIM_PAGE, VICTIM_PAGE, 2);
	}
	victim_area_remember(&own);
	victim_area_remember(&shared);
	check(strstr(own.description, " ht") != NULL, "not hugetlb: [%s]", own.description);
}

static void verify(void)
{
	victim_area_check_description(&own);
	victim_area_check_description(&shared);
	if (!has_pages)
		return;
	check(victim_differs(own.at + VICTIM_PAGE, VICTIM_PAGE, 1) < 0, "private memory has another content");
	check(victim_differs(shared.at + BYTES - VICTIM_PAGE, VICTIM_PAGE, 2) < 0,
	      "shared memory has another content");
	check(own.at[0] == 0 && shared.at[0] == 0, "a page without content has content");
}

static void sabotage(void)
{
	must(mprotect(own.at, BYTES, PROT_READ));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
