/* Proves that shared memory files on tmpfs have the content of the checkpoint after a restore, also
 * after a crash. One file is mapped by two processes, and one file grows. One file has no name any
 * more, and is mapped by two processes. A named semaphore is in a file that sem_open(3) creates
 * under another name first. */
#include "victim_tmpfs.h"

#include <semaphore.h>

#define PAGES 6u
#define SEED 51
#define BYTES (PAGES * VICTIM_PAGE)
#define COUNTERS_PAGE 4u
#define GROWN_MAX 64u

static struct victim_area named = { .name = "named", .length = BYTES };
static struct victim_area second = { .name = "second", .length = 2 * VICTIM_PAGE };
static struct victim_area gone = { .name = "gone", .length = BYTES };
static volatile uint64_t *counters; /* [0] of the parent, [1] of the child */
static volatile uint64_t *gone_counters;
static uint64_t own_count;
static char path[PATH_MAX], growing_path[PATH_MAX], semaphore_name[64];
static struct stat identity;
static int growing;
static size_t grown;
static sem_t *semaphore;
static int semaphore_value;
static int who;
static pid_t child;

static void count(volatile uint64_t *place)
{
	check(place[who] == own_count, "counter %d is %llu, was %llu", who, (unsigned long long)place[who],
	      (unsigned long long)own_count);
	place[who] = own_count + 1;
}

static void count_both(void)
{
	count(counters);
	count(gone_counters);
	own_count++;
}

static void check_semaphore(void)
{
	int value;
	must(sem_getvalue(semaphore, &value));
	check(value == semaphore_value, "the semaphore is %d, was %d", value, semaphore_value);
}

static void work(void)
{
	struct stat status;
	count_both();
	check_semaphore();
	must(sem_post(semaphore));
	semaphore_value++;
	must(fstat(growing, &status));
	check((size_t)status.st_size == grown * VICTIM_PAGE, "the growing file has %lld bytes, had %zu pages",
	      (long long)status.st_size, grown);
	grown = grown % GROWN_MAX + 1;
	must(ftruncate(growing, (off_t)(grown * VICTIM_PAGE)));
}

static int make(const char *at, size_t length)
{
	int file = must(open(at, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640));
	must(ftruncate(file, (off_t)length));
	return file;
}

static void map(struct victim_area *area, const char *at)
{
	int file = make(at, BYTES);
	area->at = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	victim_fill(area->at, BYTES, SEED);
	if (area == &named) {
		must(fstat(file, &identity));
		second.at = victim_map(second.length, PROT_READ | PROT_WRITE, MAP_SHARED, file, VICTIM_PAGE);
	}
	close(file);
	victim_area_remember(area);
}

static void setup(void)
{
	char gone_path[PATH_MAX];
	struct victim_gate gate = victim_gate_make();
	victim_tmpfs_need();
	map(&named, victim_tmpfs_path(path, "named"));
	map(&gone, victim_tmpfs_path(gone_path, "gone"));
	must(unlink(gone_path));
	victim_area_remember(&gone);
	victim_area_remember(&second);
	grown = 1;
	growing = make(victim_tmpfs_path(growing_path, "growing"), VICTIM_PAGE);
	snprintf(semaphore_name, sizeof(semaphore_name), "/" VICTIM_TMPFS_PREFIX "%d-sem", (int)getpid());
	semaphore = sem_open(semaphore_name, O_CREAT | O_EXCL, 0600, 0);
	check(semaphore != SEM_FAILED, "sem_open: %m");
	counters = (volatile uint64_t *)(named.at + COUNTERS_PAGE * VICTIM_PAGE);
	gone_counters = (volatile uint64_t *)(gone.at + COUNTERS_PAGE * VICTIM_PAGE);
	counters[0] = counters[1] = gone_counters[0] = gone_counters[1] = 0;
	child = victim_fork();
	if (child == 0) {
		who = 1;
		victim_gate_open(gate);
		victim_child(count_both, NULL);
	}
	victim_gate_wait(gate);
}

static void check_area(const struct victim_area *area)
{
	for (unsigned page = 0; page < PAGES; page++)
		if (page != COUNTERS_PAGE)
			victim_check_file_bytes(area->name, area->at + page * VICTIM_PAGE, page * VICTIM_PAGE, VICTIM_PAGE,
						SEED);
	victim_area_check_description(area);
}

static void verify(void)
{
	struct stat now;
	check_area(&named);
	check_area(&gone);
	victim_area_check_description(&second);
	must(stat(path, &now));
	check(now.st_ino == identity.st_ino && now.st_mode == identity.st_mode, "the file is another one");
	uint64_t childs = counters[1], gone_childs = gone_counters[1];
	victim_await(counters[1] > childs && gone_counters[1] > gone_childs, "the child's stores do not arrive");
	sem_t *again = sem_open(semaphore_name, 0);
	check(again == semaphore, "the semaphore of this name is another one");
	must(sem_close(again));
	work();
}

static void sabotage(void)
{
	named.at[5 * VICTIM_PAGE] ^= 1;
}

static void finish(void)
{
	victim_end_child(child);
	second.at[0] ^= 0xff;
	check(named.at[VICTIM_PAGE] == second.at[0], "the two mappings have come apart");
	must(unlink(path));
	must(unlink(growing_path));
	must(sem_unlink(semaphore_name));
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
