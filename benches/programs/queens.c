/* Counts the placements of 13 queens on a board of 13 by 13 squares in which no queen attacks another. The program uses
 * bit sets, and almost no memory.
 *
 * Options: threads=; out=. A chunk is one complete count. The result must be 73,712 placements. */
#include "kernel.h"

#define BOARD 13
#define SOLUTIONS 73712

static unsigned place_rest(unsigned columns, unsigned falling, unsigned rising)
{
	const unsigned all = (1u << BOARD) - 1;
	unsigned found = 0;
	if (columns == all)
		return 1;
	for (unsigned free = all & ~(columns | falling | rising); free; free &= free - 1) {
		unsigned queen = free & -free;
		found += place_rest(columns | queen, (falling | queen) >> 1, (rising | queen) << 1);
	}
	return found;
}

static void chunk(unsigned thread, uint64_t turn)
{
	(void)thread, (void)turn;
	if (place_rest(0, 0, 0) != SOLUTIONS)
		fail("the count");
}

int main(int argc, char **argv)
{
	count_threads(argc, argv);
	run_kernel(argc, argv);
	return 0;
}
