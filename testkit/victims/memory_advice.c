/* Proves that advice and flags of private, shared and file mappings are restored, in a parent and
 * in a child. The child has inherited some mappings and has created others. One mapping is wiped on
 * fork (MADV_WIPEONFORK), and keeps this property. */
#include "victim_file.h"

#define BYTES (3 * VICTIM_PAGE)

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { PRIVATE, SHARED, OF_FILE };

static const struct {
	int of, advice, flags;
	const char *shown;
} kinds[] = {
	{ PRIVATE, MADV_WIPEONFORK, 0, " wf" },
	{ PRIVATE, MADV_DONTFORK, 0, " dc" },
	{ PRIVATE, MADV_DONTDUMP, 0, " dd" },
	{ PRIVATE, MADV_SEQUENTIAL, 0, " sr" },
	{ PRIVATE, MADV_RANDOM, 0, " rr" },
	{ PRIVATE, MADV_MERGEABLE, 0, " mg" },
	{ PRIVATE, MADV_HUGEPAGE, 0, " hg" },
	{ PRIVATE, MADV_NOHUGEPAGE, 0, " nh" },
	{ PRIVATE, MADV_DONTDUMP, MAP_NORESERVE, " nr" },
	{ SHARED, MADV_DONTFORK, 0, " dc" },
	{ SHARED, MADV_DONTDUMP, MAP_NORESERVE, " dd" },
	{ OF_FILE, MADV_RANDOM, 0, " rr" },
	{ OF_FILE, MADV_DONTFORK, 0, " dc" },
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct victim_area areas[KINDS], inherited;
static int file;
static bool has[KINDS];
static pid_t child;

static void make(size_t i)
{
	int sharing = kinds[i].of == SHARED ? MAP_SHARED : MAP_PRIVATE;
	int flags = sharing | kinds[i].flags | (kinds[i].of == OF_FILE ? 0 : MAP_ANONYMOUS);
	areas[i] = (struct victim_area){ .name = kinds[i].shown, .length = BYTES, .seed = i };
	areas[i].at = victim_map(BYTES, PROT_READ | PROT_WRITE, flags, kinds[i].of == OF_FILE ? file : -1, 0);
	/* Advice that this kernel does not support is skipped. */
	has[i] = madvise(areas[i].at, BYTES, kinds[i].advice) == 0;
	if (!has[i])
		return;
	victim_fill(areas[i].at, BYTES, areas[i].seed);
	victim_area_remember(&areas[i]);
	check(strstr(areas[i].description, kinds[i].shown) != NULL, "no flag%s in [%s]", kinds[i].shown,
	      areas[i].description);
}

static void check_areas(void)
{
	for (size_t i = 0; i < KINDS; i++) {
		if (!has[i])
			continue;
		victim_area_check_description(&areas[i]);
		victim_area_check_content(&areas[i]);
	}
}

static void check_childs_areas(void)
{
	check_areas();
	victim_area_check_description(&inherited);
	check(strstr(inherited.description, " wf") != NULL, "the wiped area has no flag: [%s]", inherited.description);
	victim_check_zero("wiped", inherited.at, BYTES);
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	file = victim_make_file("advised", BYTES, 1);
	inherited = (struct victim_area){ .name = "wiped", .length = BYTES };
	inherited.at = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	victim_fill(inherited.at, BYTES, 99);
	must(madvise(inherited.at, BYTES, MADV_WIPEONFORK));
	for (size_t i = 0; i < KINDS; i++)
		make(i);
	child = victim_fork();
	if (child == 0) {
		for (size_t i = 0; i < KINDS; i++)
			make(i);
		victim_area_remember(&inherited);
		check_childs_areas();
		victim_gate_open(gate);
		victim_child(NULL, check_childs_areas);
	}
	victim_gate_wait(gate);
	victim_area_remember(&inherited);
}

static void verify(void)
{
	check_areas();
	victim_area_check_description(&inherited);
	check(victim_differs(inherited.at, BYTES, 99) < 0, "the area that a fork wipes has another content");
}

static void sabotage(void)
{
	must(madvise(inherited.at, BYTES, MADV_DONTDUMP));
}

static void finish(void)
{
	victim_end_child(child);
	/* In a new child, the wiped mapping is zero, and the mappings with MADV_DONTFORK do not
	 * exist. */
	child = victim_fork();
	if (child == 0) {
		victim_check_zero("wiped again", inherited.at, BYTES);
		check(msync(areas[1].at, VICTIM_PAGE, MS_ASYNC) != 0 && errno == ENOMEM, "a child got memory that it was not to get");
		_exit(0);
	}
	int status;
	must(waitpid(child, &status, 0));
	check(status == 0, "a new child ended with status 0x%x", status);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
