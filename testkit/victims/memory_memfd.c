/* Proves that memfd mappings are restored: shared mappings in parent and child, and a private
 * mapping with changed pages. The size of the memfd is not a multiple of the page size. */
#include "victim_file.h"

#define PAGES 8u
#define SEED 33
#define COPY_SEED 44
#define LENGTH (PAGES * VICTIM_PAGE - 100)

static int file;
static struct victim_area shared = { .name = "shared", .length = PAGES * VICTIM_PAGE };
static struct victim_area private = { .name = "private", .length = PAGES * VICTIM_PAGE };
static volatile uint64_t *counters;
static uint64_t own_count;
static int who;
static pid_t child;

static void work(void)
{
	check(counters[who] == own_count, "counter %d is %llu, was %llu", who, (unsigned long long)counters[who],
	      (unsigned long long)own_count);
	own_count++;
	counters[who] = own_count;
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	static unsigned char content[LENGTH];
	file = must(memfd_create("mapped by two", MFD_CLOEXEC));
	victim_fill(content, LENGTH, SEED);
	check(write(file, content, LENGTH) == LENGTH, "write: %m");
	shared.at = victim_map(shared.length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	private.at = victim_map(private.length, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	victim_fill(private.at + 2 * VICTIM_PAGE, VICTIM_PAGE, COPY_SEED);
	counters = (volatile uint64_t *)(shared.at + 5 * VICTIM_PAGE);
	counters[0] = counters[1] = 0;
	victim_area_remember(&shared);
	victim_area_remember(&private);
	child = victim_fork();
	if (child == 0) {
		who = 1;
		victim_gate_open(gate);
		victim_child(work, NULL);
	}
	victim_gate_wait(gate);
}

static void verify(void)
{
	struct stat status;
	must(fstat(file, &status));
	check(status.st_size == LENGTH, "size is %lld", (long long)status.st_size);
	for (unsigned page = 0; page < PAGES; page++) {
		size_t offset = page * VICTIM_PAGE;
		size_t length = offset + VICTIM_PAGE > LENGTH ? LENGTH - offset : VICTIM_PAGE;
		if (page == 5)
			continue;
		victim_check_file_bytes(shared.name, shared.at + offset, offset, length, SEED);
		if (page == 2)
			check(victim_differs(private.at + offset, VICTIM_PAGE, COPY_SEED) < 0, "a private change is lost");
		else
			victim_check_file_bytes(private.name, private.at + offset, offset, length, SEED);
	}
	victim_area_check_description(&shared);
	victim_area_check_description(&private);
	uint64_t childs = counters[1];
	victim_await(counters[1] > childs, "the child's stores do not arrive");
	work();
}

static void sabotage(void)
{
	must(ftruncate(file, LENGTH - 1));
}

static void finish(void)
{
	victim_end_child(child);
	check(pwrite(file, "!", 1, 9) == 1 && shared.at[9] == '!', "a write does not reach the mapping");
	check(private.at[9] == '!', "the private mapping is cut off from its file");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
