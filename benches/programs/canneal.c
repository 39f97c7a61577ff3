/* Proposes swaps of the places of random netlist elements, like simulated annealing of a chip layout. The program makes
 * many scattered reads in a large heap, and a few scattered writes.
 *
 * Options: mib= size of elements and places; accept= number of swaps that are made out of a million proposed swaps;
 * threads=; out=. accept= is constant, so that each minute of a run is like the others. At the end, each place must
 * have exactly one element. */
#include "kernel.h"

#define NEIGHBOURS 6
#define CHUNK 2000

struct place {
	int32_t x, y;
};

struct element {
	struct place *place;
	struct element *neighbours[NEIGHBOURS];
	uint64_t number;
};

static struct element *elements;
static struct place *places;
static uint64_t element_count, accepted_of_million, states[THREADS_MAX][8];
static int64_t costs[THREADS_MAX][8];

static int64_t wire(const struct element *of, const struct place *at)
{
	int64_t length = 0;
	for (int i = 0; i < NEIGHBOURS; i++) {
		const struct place *other = __atomic_load_n(&of->neighbours[i]->place, __ATOMIC_RELAXED);
		length += llabs((long long)at->x - other->x) + llabs((long long)at->y - other->y);
	}
	return length;
}

static void chunk(unsigned thread, uint64_t turn)
{
	(void)turn;
	/* Each thread swaps only elements of its own part, but reads the places of all elements. */
	uint64_t share = element_count / thread_count, *state = states[thread];
	for (int i = 0; i < CHUNK; i++) {
		struct element *one = &elements[share * thread + draw(state) % share];
		struct element *two = &elements[share * thread + draw(state) % share];
		struct place *here = one->place, *there = two->place;
		int64_t gain = wire(one, here) + wire(two, there) - wire(one, there) - wire(two, here);
		costs[thread][0] += gain;
		if (draw(state) % 1000000 < accepted_of_million) {
			__atomic_store_n(&one->place, there, __ATOMIC_RELAXED);
			__atomic_store_n(&two->place, here, __ATOMIC_RELAXED);
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t state = 88172645463325252u;
	count_threads(argc, argv);
	element_count = (number(argc, argv, "mib", 800) << 20) / (sizeof(struct element) + sizeof(struct place));
	accepted_of_million = number(argc, argv, "accept", 5000);
	elements = memory(element_count * sizeof(*elements));
	places = memory(element_count * sizeof(*places));
	for (uint64_t i = 0; i < element_count; i++) {
		places[i] = (struct place){ (int32_t)(i % 4096), (int32_t)(i / 4096) };
		elements[i] = (struct element){ .place = &places[i], .number = i };
		for (int k = 0; k < NEIGHBOURS; k++)
			elements[i].neighbours[k] = &elements[draw(&state) % element_count];
	}
	for (unsigned i = 0; i < THREADS_MAX; i++)
		states[i][0] = draw(&state);
	run_kernel(argc, argv);
	unsigned char *is_taken = memory(element_count);
	for (uint64_t i = 0; i < element_count; i++) {
		uint64_t place = (uint64_t)(elements[i].place - places);
		if (elements[i].number != i || place >= element_count || is_taken[place]++)
			fail("a place is not taken by exactly one element");
	}
	return 0;
}
