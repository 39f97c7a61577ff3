/* Proves that shared anonymous memory is restored as shared. Parent and child write their own
 * halves, and the parent checks both. They add to one sum with atomic operations, and use a
 * process-shared futex. The child has one page read-only. Another shared mapping belongs to the
 * parent alone. */
#include "victim.h"
#include "victim_memory.h"

#include <linux/futex.h>

#define BYTES (32 * VICTIM_PAGE)
#define HALF (BYTES / 2)

struct board {
	volatile uint64_t rounds[2]; /* [0] of the parent, [1] of the child */
	volatile uint64_t sum;
	volatile int bell;
	unsigned char pattern[];
};

static struct victim_area area = { .name = "shared", .length = BYTES }, alone = { .name = "alone", .length = BYTES };
static struct board *board;
static int who;
static uint64_t own_rounds, own_seed;
static pid_t child;

static unsigned char *own_half(void)
{
	return area.at + (who == 0 ? VICTIM_PAGE : HALF);
}

#define OWN_BYTES (4 * VICTIM_PAGE)

static void work(void)
{
	check(board->rounds[who] == own_rounds, "rounds of %d are %llu, were %llu", who,
	      (unsigned long long)board->rounds[who], (unsigned long long)own_rounds);
	check(victim_differs(own_half(), OWN_BYTES, own_seed) < 0, "the half of %d is wrong", who);
	own_seed += 2;
	victim_fill(own_half(), OWN_BYTES, own_seed);
	__atomic_add_fetch(&board->sum, 1, __ATOMIC_SEQ_CST);
	own_rounds++;
	board->rounds[who] = own_rounds;
	__atomic_add_fetch(&board->bell, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &board->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	area.at = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	board = (struct board *)area.at;
	alone.at = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	victim_fill(alone.at, BYTES - VICTIM_PAGE, 7);
	must(madvise(alone.at, BYTES, MADV_DONTFORK));
	own_seed = 1000;
	victim_fill(own_half(), OWN_BYTES, own_seed);
	victim_area_remember(&area);
	victim_area_remember(&alone);
	child = victim_fork();
	if (child == 0) {
		who = 1;
		own_seed = 1001;
		victim_fill(own_half(), OWN_BYTES, own_seed);
		must(mprotect(area.at + VICTIM_PAGE, VICTIM_PAGE, PROT_READ));
		victim_gate_open(gate);
		victim_child(work, NULL);
	}
	victim_gate_wait(gate);
}

/* Waits on the shared futex until the child has completed another round. */
static void wait_for_child(void)
{
	struct timespec limit = { 0, 100000000 };
	uint64_t before = board->rounds[1], until = victim_now_us() + victim_patience_us;
	while (board->rounds[1] == before) {
		syscall(SYS_futex, &board->bell, FUTEX_WAIT, board->bell, &limit, NULL, 0);
		check(victim_now_us() < until, "the child does not ring");
	}
}

static void verify(void)
{
	victim_area_check_description(&area);
	victim_area_check_description(&alone);
	check(victim_differs(alone.at, BYTES - VICTIM_PAGE, 7) < 0, "the memory of one process is wrong");
	victim_check_zero("never touched", alone.at + BYTES - VICTIM_PAGE, VICTIM_PAGE);
	work();
	wait_for_child();
}

static void sabotage(void)
{
	board->sum += 5;
}

static void finish(void)
{
	victim_end_child(child);
	check(board->sum == board->rounds[0] + board->rounds[1], "the sum is %llu, the rounds are %llu and %llu",
	      (unsigned long long)board->sum, (unsigned long long)board->rounds[0], (unsigned long long)board->rounds[1]);
	check(victim_differs(area.at + HALF, OWN_BYTES, 1001 + 2 * board->rounds[1]) < 0, "the child's half is wrong");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
