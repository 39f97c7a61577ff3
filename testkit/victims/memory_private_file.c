/* Proves that private file mappings are restored. Changed pages keep their changes. Unchanged pages
 * show the file, also data that is written to the file later. Offset, protection and the end of the
 * file are kept. So is a mapping like RELRO, which is changed and then made read-only. */
#include "victim_file.h"

#define PAGES 16u
#define FILE_SEED 50
#define COPY_SEED 60
#define TAIL_BYTES 1000u
#define FILE_BYTES (PAGES * VICTIM_PAGE - VICTIM_PAGE + TAIL_BYTES)
#define WINDOW_OFFSET (4 * VICTIM_PAGE)
#define WINDOW_PAGES 4u

static int file;
static struct victim_area whole = { .name = "whole", .length = PAGES * VICTIM_PAGE };
static struct victim_area window = { .name = "window", .length = WINDOW_PAGES * VICTIM_PAGE };
static struct victim_area relro = { .name = "read-only after a change", .length = 2 * VICTIM_PAGE };
static struct victim_area code = { .name = "executable", .length = VICTIM_PAGE };
static uint64_t hot;

static bool is_changed(unsigned page)
{
	return page == 2 || page == 5 || page == 9;
}

static void map(struct victim_area *area, int protection, off_t offset)
{
	area->at = victim_map(area->length, protection, MAP_PRIVATE, file, offset);
}

static void setup(void)
{
	file = victim_make_file("mapped", FILE_BYTES, FILE_SEED);
	map(&whole, PROT_READ | PROT_WRITE, 0);
	for (unsigned page = 0; page < PAGES; page++)
		if (is_changed(page))
			victim_fill(whole.at + page * VICTIM_PAGE, VICTIM_PAGE, COPY_SEED + page);
	memcpy(whole.at + 9 * VICTIM_PAGE, &hot, sizeof(hot));
	map(&window, PROT_READ, WINDOW_OFFSET);
	map(&relro, PROT_READ | PROT_WRITE, 6 * VICTIM_PAGE);
	victim_fill(relro.at, VICTIM_PAGE, COPY_SEED + 100);
	must(mprotect(relro.at, relro.length, PROT_READ));
	map(&code, PROT_READ | PROT_EXEC, 0);
	victim_area_remember(&whole);
	victim_area_remember(&window);
	victim_area_remember(&relro);
	victim_area_remember(&code);
}

static void work(void)
{
	uint64_t stored;
	memcpy(&stored, whole.at + 9 * VICTIM_PAGE, sizeof(stored));
	check(stored == hot, "the hot word is %llu, was %llu", (unsigned long long)stored, (unsigned long long)hot);
	hot++;
	memcpy(whole.at + 9 * VICTIM_PAGE, &hot, sizeof(hot));
}

static void check_page(unsigned page)
{
	const unsigned char *at = whole.at + page * VICTIM_PAGE;
	size_t skip = page == 9 ? sizeof(hot) : 0;
	if (is_changed(page)) {
		for (size_t i = skip; i < VICTIM_PAGE; i++)
			check(at[i] == victim_byte(COPY_SEED + page, i), "page %u lost its change at byte %zu", page, i);
		return;
	}
	size_t length = page == PAGES - 1 ? TAIL_BYTES : VICTIM_PAGE;
	victim_check_file_bytes(whole.name, at, page * VICTIM_PAGE, length, FILE_SEED);
	victim_check_zero("behind the end of the file", at + length, VICTIM_PAGE - length);
}

static void verify(void)
{
	for (unsigned page = 0; page < PAGES; page++)
		check_page(page);
	victim_check_file_bytes(window.name, window.at, WINDOW_OFFSET, window.length, FILE_SEED);
	check(victim_differs(relro.at, VICTIM_PAGE, COPY_SEED + 100) < 0, "%s: lost its change", relro.name);
	victim_check_file_bytes(relro.name, relro.at + VICTIM_PAGE, 7 * VICTIM_PAGE, VICTIM_PAGE, FILE_SEED);
	victim_area_check_description(&whole);
	victim_area_check_description(&window);
	victim_area_check_description(&relro);
	victim_area_check_description(&code);
}

static void sabotage(void)
{
	whole.at[5 * VICTIM_PAGE + 99] ^= 1;
}

/* A write to the file is visible in an unchanged page, and not in a changed page. */
static void finish(void)
{
	unsigned char byte = (unsigned char)~victim_byte(FILE_SEED, 5 * VICTIM_PAGE);
	check(pwrite(file, &byte, 1, 5 * VICTIM_PAGE) == 1, "pwrite: %m");
	check(window.at[VICTIM_PAGE] == byte, "the mapping is cut off from its file");
	check(whole.at[5 * VICTIM_PAGE] == victim_byte(COPY_SEED + 5, 0), "a changed page follows the file");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
