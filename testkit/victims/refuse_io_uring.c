/* Has an io_uring in use: a poll of a pipe is in flight. */
#include "victim_memory.h"

#include <linux/io_uring.h>

#define ENTRIES 4

static int ring, ends[2];
static unsigned char *rings;
static struct io_uring_sqe *submissions;
static struct io_uring_params parameters;

static volatile uint32_t *ring_word(uint32_t offset)
{
	return (volatile uint32_t *)(rings + offset);
}

/* Submits a poll request that completes when the pipe becomes readable. */
static void submit_poll(void)
{
	uint32_t tail = *ring_word(parameters.sq_off.tail), index = tail & *ring_word(parameters.sq_off.ring_mask);
	memset(&submissions[index], 0, sizeof(submissions[index]));
	submissions[index].opcode = IORING_OP_POLL_ADD;
	submissions[index].fd = ends[0];
	submissions[index].poll32_events = 1;
	submissions[index].user_data = 4711;
	ring_word(parameters.sq_off.array)[index] = index;
	__atomic_store_n(ring_word(parameters.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	check(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1, "io_uring_enter: %m");
}

static void setup(void)
{
	ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &parameters);
	if (ring < 0)
		victim_unsupported("io_uring_setup: %m");
	check(parameters.features & IORING_FEAT_SINGLE_MMAP, "the rings need two mappings");
	rings = mmap(NULL, parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe),
		     PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	submissions = mmap(NULL, ENTRIES * sizeof(*submissions), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
			   IORING_OFF_SQES);
	check(rings != MAP_FAILED && submissions != MAP_FAILED, "mmap: %m");
	must(pipe(ends));
	submit_poll();
}

static uint32_t completions(void)
{
	return *ring_word(parameters.cq_off.tail) - *ring_word(parameters.cq_off.head);
}

static void verify(void)
{
	check(completions() == 0, "%u completions without a reason", completions());
}

static void sabotage(void)
{
	check(write(ends[1], "x", 1) == 1, "write: %m");
	victim_await((syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0), completions() == 1),
		     "the poll does not complete");
}

static void finish(void)
{
	const struct io_uring_cqe *completion = (const struct io_uring_cqe *)(rings + parameters.cq_off.cqes);
	check(write(ends[1], "x", 1) == 1, "write: %m");
	must(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0));
	check(completions() == 1 && completion->user_data == 4711, "the poll in flight is lost");
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
