/* Proves that mappings of a file without a name are restored: shared and private mappings of an
 * unlinked file without an open descriptor. The private mapping has changed pages, and two shared
 * mappings stay connected. */
#include "victim_file.h"

#define PAGES 6u
#define FILE_SEED 80
#define COPY_SEED 90
#define FILE_BYTES (PAGES * VICTIM_PAGE)

static struct victim_area shared = { .name = "shared", .length = FILE_BYTES };
static struct victim_area shared_again = { .name = "shared again", .length = 2 * VICTIM_PAGE };
static struct victim_area private = { .name = "private", .length = FILE_BYTES };
static uint64_t hot;

static void setup(void)
{
	char path[PATH_MAX];
	int file = victim_make_file("gone", FILE_BYTES, FILE_SEED);
	shared.at = victim_map(FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	shared_again.at = victim_map(shared_again.length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 2 * VICTIM_PAGE);
	private.at = victim_map(FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	close(file);
	must(unlink(victim_path(path, "gone")));
	victim_fill(private.at + VICTIM_PAGE, VICTIM_PAGE, COPY_SEED);
	memcpy(shared.at + 3 * VICTIM_PAGE, &hot, sizeof(hot));
	victim_area_remember(&shared);
	victim_area_remember(&shared_again);
	victim_area_remember(&private);
}

static void work(void)
{
	uint64_t stored;
	memcpy(&stored, shared_again.at + VICTIM_PAGE, sizeof(stored));
	check(stored == hot, "the shared word is %llu, was %llu", (unsigned long long)stored, (unsigned long long)hot);
	hot++;
	memcpy(shared.at + 3 * VICTIM_PAGE, &hot, sizeof(hot));
}

static void verify(void)
{
	for (unsigned page = 0; page < PAGES; page++) {
		size_t offset = page * VICTIM_PAGE, skip = page == 3 ? sizeof(hot) : 0;
		victim_check_file_bytes(shared.name, shared.at + offset + skip, offset + skip, VICTIM_PAGE - skip, FILE_SEED);
		if (page == 1)
			check(victim_differs(private.at + offset, VICTIM_PAGE, COPY_SEED) < 0, "a private change is lost");
		else
			victim_check_file_bytes(private.name, private.at + offset + skip, offset + skip, VICTIM_PAGE - skip,
						FILE_SEED);
	}
	victim_area_check_description(&shared);
	victim_area_check_description(&shared_again);
	victim_area_check_description(&private);
	work();
}

static void sabotage(void)
{
	private.at[VICTIM_PAGE + 5] ^= 1;
}

/* Pages that the private mapping has not changed still show the file. */
static void finish(void)
{
	shared.at[4 * VICTIM_PAGE] ^= 0xff;
	check(private.at[4 * VICTIM_PAGE] == shared.at[4 * VICTIM_PAGE], "private and shared mapping have come apart");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
