/* Writes to random pages at a constant rate, in parts of 5 ms, and sleeps in between.
 *
 * Options: mib= memory [256], rate= pages per second [40000]. Each page counts its writes in its first word; the sum is
 * compared with the number of all writes. */
#include "subject.h"

#define PART_NS 5000000ul

int main(int argc, char **argv)
{
	uint64_t pages = number(argc, argv, "mib", 256) << 8, part = number(argc, argv, "rate", 40000) / 200;
	uint64_t *words = memory(pages * PAGE), state = 88172645463325252ul, writes = 0, sum = 0;
	struct timespec next;
	for (uint64_t page = 0; page < pages; page++)
		words[page * (PAGE / 8)] = 1;
	announce();
	clock_gettime(CLOCK_MONOTONIC, &next);
	while (!is_over) {
		for (uint64_t i = 0; i < part; i++, writes++)
			words[draw(&state) % pages * (PAGE / 8)]++;
		next.tv_nsec += PART_NS;
		next.tv_sec += next.tv_nsec / 1000000000, next.tv_nsec %= 1000000000;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, 0);
	}
	for (uint64_t page = 0; page < pages; page++)
		sum += words[page * (PAGE / 8)];
	if (sum != writes + pages)
		fail("the pages have not counted all writes");
	write_out(argc, argv, 0, 0);
	return 0;
}
