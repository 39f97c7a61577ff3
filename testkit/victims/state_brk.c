/* Proves that the heap is restored with its content and its break, and that sbrk and malloc still
 * extend it. */
#include "victim.h"

#define HEAP_BYTES (1u << 20)
#define STEP_BYTES 4096
#define STEPS_MAX 512
#define BLOCKS 50

static unsigned char *heap;
static char *expected_break;
static unsigned steps;
static unsigned char *blocks[BLOCKS];

static size_t block_length(int number)
{
	return 10 + (size_t)number * 321;
}

static void setup(void)
{
	for (int i = 0; i < BLOCKS; i++) {
		blocks[i] = malloc(block_length(i));
		check(blocks[i] != NULL, "malloc: %m");
		victim_fill(blocks[i], block_length(i), 1000 + (uint64_t)i);
	}
	heap = sbrk(HEAP_BYTES);
	check(heap != (void *)-1, "sbrk: %m");
	victim_fill(heap, HEAP_BYTES, 1);
	expected_break = sbrk(0);
}

static void grow(void)
{
	unsigned char *step = sbrk(STEP_BYTES);
	check((char *)step == expected_break, "the heap grew at %p, not at %p", (void *)step, (void *)expected_break);
	for (int i = 0; i < STEP_BYTES; i++)
		check(step[i] == 0, "fresh heap is not zero");
	victim_fill(step, STEP_BYTES, 5000 + steps);
	expected_break += STEP_BYTES;
	steps++;
}

static void work(void)
{
	check(sbrk(0) == expected_break, "the break is %p, was %p", sbrk(0), (void *)expected_break);
	if (steps < STEPS_MAX)
		grow();
}

static void verify(void)
{
	check(sbrk(0) == expected_break, "the break is %p, was %p", sbrk(0), (void *)expected_break);
	check(victim_differs(heap, HEAP_BYTES, 1) < 0, "the heap is wrong");
	for (unsigned i = 0; i < steps; i++)
		check(victim_differs(heap + HEAP_BYTES + i * STEP_BYTES, STEP_BYTES, 5000 + i) < 0, "step %u is wrong", i);
	for (int i = 0; i < BLOCKS; i++)
		check(victim_differs(blocks[i], block_length(i), 1000 + (uint64_t)i) < 0, "block %d is wrong", i);
}

static void sabotage(void)
{
	heap[77777] ^= 0x10;
}

static void finish(void)
{
	grow();
	for (int i = 0; i < BLOCKS; i++) {
		blocks[i] = realloc(blocks[i], 2 * block_length(i) + 60000);
		check(blocks[i] != NULL, "realloc: %m");
		check(victim_differs(blocks[i], block_length(i), 1000 + (uint64_t)i) < 0, "block %d changed as it grew", i);
	}
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
