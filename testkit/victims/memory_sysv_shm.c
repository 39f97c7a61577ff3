/* Proves that System V shared memory is restored with ids, keys, owners, modes, addresses and
 * attach counts. One segment has a key, and is attached by two processes, once more read-only. One
 * segment is removed and still attached. One segment has an unmapped page in the middle and a
 * protected page. */
#include "victim.h"
#include "victim_memory.h"

#include <sys/shm.h>

#define PAGES 6u
#define BYTES (PAGES * VICTIM_PAGE)
#define LENGTH (BYTES - 100)
#define SEED 61
#define COUNTERS_PAGE 4u
/* The key contains the pid, so that a later victim finds and removes the segments of a killed
 * victim. A restore makes segments before it makes the process with the pid, so that a segment must
 * be old. */
#define KEY_BASE 0x56000000
#define PID_MASK 0x3fffff
#define AGE_MIN_SECONDS 600

enum { KEYED, REMOVED, PARTS, SEGMENTS };

static int ids[SEGMENTS];
static struct victim_area areas[SEGMENTS] = { { .name = "keyed" }, { .name = "removed" }, { .name = "parts" } };
static struct victim_area read_only = { .name = "read-only" };
static struct shmid_ds before[SEGMENTS];
static volatile uint64_t *counters[2]; /* each: [0] of the parent, [1] of the child */
static uint64_t own_count;
static int who;
static pid_t child;

static void count_both(void)
{
	for (int i = 0; i < 2; i++) {
		check(counters[i][who] == own_count, "counter %d is %llu, was %llu", who,
		      (unsigned long long)counters[i][who], (unsigned long long)own_count);
		counters[i][who] = own_count + 1;
	}
	own_count++;
}

static void work(void)
{
	count_both();
}

static void sweep(void)
{
	struct shmid_ds status;
	int highest = shmctl(0, SHM_INFO, &status);
	for (int index = 0; index <= highest; index++) {
		int id = shmctl(index, SHM_STAT, &status);
		int key = status.shm_perm.__key;
		if (id >= 0 && (key & ~PID_MASK) == KEY_BASE && time(NULL) - status.shm_ctime > AGE_MIN_SECONDS &&
		    kill(key & PID_MASK, 0) != 0 && errno == ESRCH)
			shmctl(id, IPC_RMID, NULL);
	}
}

static unsigned char *attach(int id, int flags)
{
	unsigned char *wanted = victim_place(BYTES);
	unsigned char *at = shmat(id, wanted, flags);
	check(at == wanted, "shmat: %m");
	return at;
}

static void remember(void)
{
	for (int i = 0; i < SEGMENTS; i++)
		must(shmctl(ids[i], IPC_STAT, &before[i]));
}

static void check_segments(void)
{
	struct shmid_ds now;
	for (int i = 0; i < SEGMENTS; i++) {
		const struct ipc_perm *is = &now.shm_perm, *was = &before[i].shm_perm;
		must(shmctl(ids[i], IPC_STAT, &now));
		check(is->__key == was->__key && is->uid == was->uid && is->gid == was->gid && is->cuid == was->cuid &&
			      is->cgid == was->cgid && is->mode == was->mode,
		      "%s: key, owner, maker or mode has changed (key %x, mode %o, was %o)", areas[i].name, is->__key,
		      is->mode, was->mode);
		check(now.shm_segsz == before[i].shm_segsz, "%s: %zu bytes", areas[i].name, now.shm_segsz);
		check(now.shm_nattch == before[i].shm_nattch, "%s: attached %lu times, was %lu", areas[i].name,
		      (unsigned long)now.shm_nattch, (unsigned long)before[i].shm_nattch);
	}
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	int next = open("/proc/sys/kernel/shm_next_id", O_WRONLY | O_CLOEXEC);
	if (next < 0)
		victim_unsupported("segments with a chosen id: %m");
	close(next);
	sweep();
	ids[KEYED] = must(shmget(KEY_BASE | getpid(), LENGTH, IPC_CREAT | IPC_EXCL | 0640));
	for (int i = KEYED + 1; i < SEGMENTS; i++)
		ids[i] = must(shmget(IPC_PRIVATE, LENGTH, IPC_CREAT | 0600));
	for (int i = 0; i < SEGMENTS; i++) {
		areas[i].at = attach(ids[i], 0);
		areas[i].length = BYTES;
		victim_fill(areas[i].at, BYTES, SEED + (unsigned)i);
		if (i != KEYED)
			must(shmctl(ids[i], IPC_RMID, NULL));
	}
	read_only.at = attach(ids[KEYED], SHM_RDONLY);
	read_only.length = BYTES;
	must(munmap(areas[PARTS].at + 2 * VICTIM_PAGE, VICTIM_PAGE));
	must(mprotect(areas[PARTS].at + 3 * VICTIM_PAGE, VICTIM_PAGE, PROT_READ));
	for (int i = 0; i < 2; i++) {
		counters[i] = (volatile uint64_t *)(areas[i].at + COUNTERS_PAGE * VICTIM_PAGE);
		counters[i][0] = counters[i][1] = 0;
	}
	child = victim_fork();
	if (child == 0) {
		who = 1;
		victim_gate_open(gate);
		victim_child(count_both, NULL);
	}
	victim_gate_wait(gate);
	for (int i = 0; i < SEGMENTS; i++)
		victim_area_remember(&areas[i]);
	victim_area_remember(&read_only);
	remember();
}

static void check_pages(const struct victim_area *area, unsigned seed, unsigned without)
{
	for (unsigned page = 0; page < PAGES; page++)
		for (size_t i = page * VICTIM_PAGE; page != without && i < (page + 1) * VICTIM_PAGE; i++)
			check(area->at[i] == victim_byte(seed, i), "%s: byte %zu is wrong", area->name, i);
	victim_area_check_description(area);
}

static void verify(void)
{
	check_pages(&areas[KEYED], SEED + KEYED, COUNTERS_PAGE);
	check_pages(&read_only, SEED + KEYED, COUNTERS_PAGE);
	check_pages(&areas[REMOVED], SEED + REMOVED, COUNTERS_PAGE);
	check_pages(&areas[PARTS], SEED + PARTS, 2);
	check_segments();
	must_fail_with(mprotect(read_only.at, BYTES, PROT_READ | PROT_WRITE), EACCES);
	check(must(shmget(KEY_BASE | getpid(), 0, 0)) == ids[KEYED], "the key leads elsewhere");
	for (int i = 0; i < 2; i++) {
		uint64_t childs = counters[i][1];
		victim_await(counters[i][1] > childs, "the child's stores do not arrive");
	}
	work();
}

static void sabotage(void)
{
	areas[KEYED].at[5 * VICTIM_PAGE] ^= 1;
}

static void finish(void)
{
	victim_end_child(child);
	areas[KEYED].at[7] ^= 0xff;
	check(read_only.at[7] == areas[KEYED].at[7], "the two attachments have come apart");
	must(shmdt(read_only.at));
	must(shmdt(areas[REMOVED].at));
	must_fail_with(shmctl(ids[REMOVED], IPC_STAT, &before[REMOVED]), EINVAL);
	must(shmctl(ids[KEYED], IPC_RMID, NULL));
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
