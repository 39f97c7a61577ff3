/* Proves that shared file mappings are restored with the connection to their file. Stores are
 * visible in read(2) and in a second mapping at another offset. Writes to the file are visible in
 * memory. A read-only mapping cannot be made writable. A child that maps the same file still shares
 * it.
 *
 * After a crash: files may contain newer data than the memory. */
#include "victim_file.h"

#define PAGES 8u
#define FILE_SEED 70
#define FILE_BYTES (PAGES * VICTIM_PAGE)
#define COUNTERS_PAGE 6u

static int file;
static struct victim_area whole = { .name = "whole", .length = FILE_BYTES };
static struct victim_area second = { .name = "second", .length = 2 * VICTIM_PAGE };
static struct victim_area read_only = { .name = "read-only", .length = FILE_BYTES };
static volatile uint64_t *counters; /* [0] of the parent, [1] of the child */
static uint64_t own_count;
static int who;
static pid_t child;

static void count(void)
{
	uint64_t in_file = counters[who];
	check(victim_file_agrees(in_file, own_count), "counter %d is %llu, was %llu", who, (unsigned long long)in_file,
	      (unsigned long long)own_count);
	own_count++;
	counters[who] = own_count;
}

static void setup(void)
{
	char path[PATH_MAX];
	struct victim_gate gate = victim_gate_make();
	file = victim_make_file("shared", FILE_BYTES, FILE_SEED);
	whole.at = victim_map(FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	second.at = victim_map(second.length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 5 * VICTIM_PAGE);
	int reader = must(open(victim_path(path, "shared"), O_RDONLY));
	read_only.at = victim_map(FILE_BYTES, PROT_READ, MAP_SHARED, reader, 0);
	close(reader);
	counters = (volatile uint64_t *)(whole.at + COUNTERS_PAGE * VICTIM_PAGE);
	counters[0] = counters[1] = 0;
	victim_area_remember(&whole);
	victim_area_remember(&second);
	victim_area_remember(&read_only);
	child = victim_fork();
	if (child == 0) {
		who = 1;
		victim_gate_open(gate);
		victim_child(count, NULL);
	}
	victim_gate_wait(gate);
}

static void work(void)
{
	uint64_t on_disk = 0;
	count();
	check(pread(file, &on_disk, sizeof(on_disk), COUNTERS_PAGE * VICTIM_PAGE) == sizeof(on_disk), "pread: %m");
	check(victim_file_agrees(on_disk, own_count), "a store does not reach the file");
	check(victim_file_agrees(*(volatile uint64_t *)(second.at + VICTIM_PAGE), own_count),
	      "a store does not reach the second mapping");
}

static void verify(void)
{
	for (unsigned page = 0; page < PAGES; page++)
		if (page != COUNTERS_PAGE)
			victim_check_file_bytes(whole.name, whole.at + page * VICTIM_PAGE, page * VICTIM_PAGE, VICTIM_PAGE,
						FILE_SEED);
	victim_check_file_bytes(read_only.name, read_only.at, 0, COUNTERS_PAGE * VICTIM_PAGE, FILE_SEED);
	victim_area_check_description(&whole);
	victim_area_check_description(&second);
	victim_area_check_description(&read_only);
	must_fail_with(mprotect(read_only.at, FILE_BYTES, PROT_READ | PROT_WRITE), EACCES);
	uint64_t childs = counters[1];
	victim_await(counters[1] > childs, "the child's stores do not arrive");
	work();
}

static void sabotage(void)
{
	check(pwrite(file, "?", 1, 3 * VICTIM_PAGE + 33) == 1, "pwrite: %m");
}

static void finish(void)
{
	victim_end_child(child);
	check(pwrite(file, "!", 1, 7) == 1, "pwrite: %m");
	check(whole.at[7] == '!' && read_only.at[7] == '!', "a write does not reach the mappings");
	second.at[0] = '#';
	check(whole.at[5 * VICTIM_PAGE] == '#', "the mappings do not share");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
