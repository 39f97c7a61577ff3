/* Proves that mappings with huge pages are restored with content and flags. There are huge pages, a
 * huge page that a change of protection has split, and a single page that the program has freed. */
#include "victim.h"
#include "victim_memory.h"

#define HUGE (2u << 20)
#define BYTES (4 * HUGE)

static struct victim_area area = { .name = "huge", .length = BYTES };
static unsigned char *split, *holed;
static uint64_t hot;

static void setup(void)
{
	unsigned char *place = victim_place(BYTES + HUGE);
	place = (unsigned char *)(((uintptr_t)place + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	area.at = mmap(place, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	check(area.at == place, "mmap: %m");
	if (madvise(area.at, BYTES, MADV_HUGEPAGE) != 0)
		victim_unsupported("MADV_HUGEPAGE: %m");
	for (size_t at = 0; at < BYTES; at += VICTIM_PAGE)
		victim_fill(area.at + at, 64, at);
	split = area.at + HUGE;
	holed = area.at + 2 * HUGE + 5 * VICTIM_PAGE;
	must(mprotect(split, VICTIM_PAGE, PROT_READ));
	must(madvise(holed, VICTIM_PAGE, MADV_DONTNEED));
	victim_area_remember(&area);
}

/* Writes to another page in each round, so that dirty tracking must split huge pages. */
static void work(void)
{
	uint64_t *word = (uint64_t *)(area.at + 3 * HUGE + (hot % 512) * VICTIM_PAGE + 128);
	check(*word == (hot < 512 ? 0 : hot - 512), "word %llu is %llu", (unsigned long long)hot, (unsigned long long)*word);
	*word = hot;
	hot++;
}

static void verify(void)
{
	victim_area_check_description(&area);
	check(strstr(area.description, " hg") != NULL, "the huge page flag is lost: [%s]", area.description);
	for (size_t at = 0; at < BYTES; at += VICTIM_PAGE) {
		if (area.at + at == holed)
			victim_check_zero("the page given back", holed, VICTIM_PAGE);
		else
			check(victim_differs(area.at + at, 64, at) < 0, "page at %#zx is wrong", at);
		if (at < 3 * HUGE)
			victim_check_zero("rest of a page", area.at + at + 64, VICTIM_PAGE - 64);
	}
}

static void sabotage(void)
{
	area.at[HUGE / 2 + 7] ^= 1;
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
