/* Proves that private anonymous memory is restored: content, protection, borders and flags of many
 * mappings. They are read-only, PROT_NONE with content, executable, MAP_NORESERVE, with every
 * madvise flag, or have untouched pages. A hot mapping changes in each round, and is checked in
 * each round. */
#include "victim.h"
#include "victim_memory.h"

#define AREA_BYTES (16 * VICTIM_PAGE)
#define MANY 64
#define NO_ADVICE (-1)

struct kind {
	const char *name;
	int protection; /* set after the content is written */
	int flags, advice;
};

static const struct kind kinds[] = {
	{ "plain", PROT_READ | PROT_WRITE, 0, NO_ADVICE },
	{ "read-only", PROT_READ, 0, NO_ADVICE },
	{ "guarded", PROT_NONE, 0, NO_ADVICE },
	{ "no reserve", PROT_READ | PROT_WRITE, MAP_NORESERVE, NO_ADVICE },
	{ "populated", PROT_READ | PROT_WRITE, MAP_POPULATE, NO_ADVICE },
	{ "not dumped", PROT_READ | PROT_WRITE, 0, MADV_DONTDUMP },
	{ "not forked", PROT_READ | PROT_WRITE, 0, MADV_DONTFORK },
	{ "wiped on fork", PROT_READ | PROT_WRITE, 0, MADV_WIPEONFORK },
	{ "huge pages", PROT_READ | PROT_WRITE, 0, MADV_HUGEPAGE },
	{ "no huge pages", PROT_READ | PROT_WRITE, 0, MADV_NOHUGEPAGE },
	{ "sequential", PROT_READ | PROT_WRITE, 0, MADV_SEQUENTIAL },
	{ "random", PROT_READ | PROT_WRITE, 0, MADV_RANDOM },
	{ "mergeable", PROT_READ | PROT_WRITE, 0, MADV_MERGEABLE },
	{ "executable", PROT_READ | PROT_WRITE | PROT_EXEC, 0, NO_ADVICE },
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct victim_area areas[KINDS], many[MANY];
static struct victim_area sparse = { .name = "sparse", .length = AREA_BYTES };
static struct victim_area hot = { .name = "hot", .length = AREA_BYTES };
static struct victim_area code = { .name = "code", .length = VICTIM_PAGE };
/* mov eax, 0x2a5f; ret */
static const unsigned char instructions[] = { 0xb8, 0x5f, 0x2a, 0x00, 0x00, 0xc3 };

static void map(struct victim_area *area, const char *name, size_t length, uint64_t seed, int flags)
{
	area->name = name;
	area->length = length;
	area->seed = seed;
	area->at = victim_map(length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static void setup_kind(size_t i)
{
	map(&areas[i], kinds[i].name, AREA_BYTES, i, kinds[i].flags);
	if (kinds[i].advice != NO_ADVICE && madvise(areas[i].at, AREA_BYTES, kinds[i].advice) != 0)
		check(errno == EINVAL, "%s: madvise: %m", kinds[i].name); /* not supported by this kernel */
	victim_fill(areas[i].at, AREA_BYTES, areas[i].seed);
	must(mprotect(areas[i].at, AREA_BYTES, kinds[i].protection));
	victim_area_remember(&areas[i]);
}

static void setup(void)
{
	for (size_t i = 0; i < KINDS; i++)
		setup_kind(i);
	for (size_t i = 0; i < MANY; i++) {
		map(&many[i], "one of many", (1 + i % 5) * VICTIM_PAGE, 100 + i, 0);
		victim_fill(many[i].at, many[i].length, many[i].seed);
		if (i % 2 == 0)
			must(mprotect(many[i].at, VICTIM_PAGE, PROT_READ));
		victim_area_remember(&many[i]);
	}
	map(&sparse, sparse.name, AREA_BYTES, 1, 0);
	for (size_t page = 0; page < AREA_BYTES / VICTIM_PAGE; page += 3)
		victim_fill(sparse.at + page * VICTIM_PAGE, VICTIM_PAGE, page);
	must(madvise(sparse.at + 6 * VICTIM_PAGE, VICTIM_PAGE, MADV_DONTNEED));
	map(&hot, hot.name, AREA_BYTES, 1000, 0);
	victim_fill(hot.at, AREA_BYTES, hot.seed);
	map(&code, code.name, VICTIM_PAGE, 0, 0);
	memcpy(code.at, instructions, sizeof(instructions));
	must(mprotect(code.at, VICTIM_PAGE, PROT_READ | PROT_EXEC));
	victim_area_remember(&code);
}

static void work(void)
{
	victim_area_check_content(&hot);
	hot.seed++;
	victim_fill(hot.at, hot.length, hot.seed);
}

static void check_sparse(void)
{
	for (size_t page = 0; page < AREA_BYTES / VICTIM_PAGE; page++) {
		const unsigned char *at = sparse.at + page * VICTIM_PAGE;
		if (page % 3 == 0 && page != 6)
			check(victim_differs(at, VICTIM_PAGE, page) < 0, "sparse: page %zu is wrong", page);
		else
			victim_check_zero("sparse", at, VICTIM_PAGE);
	}
}

static void verify(void)
{
	for (size_t i = 0; i < KINDS; i++) {
		victim_area_check_description(&areas[i]);
		if (kinds[i].protection == PROT_NONE)
			must(mprotect(areas[i].at, AREA_BYTES, PROT_READ));
		victim_area_check_content(&areas[i]);
		must(mprotect(areas[i].at, AREA_BYTES, kinds[i].protection));
	}
	for (size_t i = 0; i < MANY; i++) {
		victim_area_check_description(&many[i]);
		victim_area_check_content(&many[i]);
	}
	check_sparse();
	victim_area_check_description(&code);
	int (*function)(void);
	memcpy(&function, &code.at, sizeof(function));
	check(function() == 0x2a5f, "the code in memory does something else");
	work();
}

static void sabotage(void)
{
	unsigned char *byte = areas[2].at + 5 * VICTIM_PAGE + 17;
	must(mprotect(areas[2].at, AREA_BYTES, PROT_READ | PROT_WRITE));
	*byte ^= 4;
	must(mprotect(areas[2].at, AREA_BYTES, PROT_NONE));
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
