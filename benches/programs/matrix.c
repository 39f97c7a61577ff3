/* Repeatedly multiplies two matrices of 200 by 200 doubles. The working set is small, and permanently written.
 *
 * Options: threads=; out=. A chunk is one product. The sum of all elements of each product must be correct. All
 * elements are small integers, so that the sums are exact. */
#include "kernel.h"

#define SIDE 200

typedef double matrix[SIDE][SIDE];
static matrix left, right, *products;
static double wanted_sum;

static double sum_of_product(void)
{
	double sum = 0;
	for (int k = 0; k < SIDE; k++) {
		double column = 0, row = 0;
		for (int i = 0; i < SIDE; i++)
			column += left[i][k], row += right[k][i];
		sum += column * row;
	}
	return sum;
}

static void chunk(unsigned thread, uint64_t turn)
{
	matrix *into = &products[thread];
	double sum = 0;
	(void)turn;
	memset(into, 0, sizeof(*into));
	for (int i = 0; i < SIDE; i++)
		for (int k = 0; k < SIDE; k++)
			for (int j = 0; j < SIDE; j++)
				(*into)[i][j] += left[i][k] * right[k][j];
	for (int i = 0; i < SIDE; i++)
		for (int j = 0; j < SIDE; j++)
			sum += (*into)[i][j];
	if (sum != wanted_sum)
		fail("a product");
}

int main(int argc, char **argv)
{
	uint64_t state = 88172645463325252u;
	count_threads(argc, argv);
	products = memory(thread_count * sizeof(*products));
	for (int i = 0; i < SIDE; i++)
		for (int j = 0; j < SIDE; j++)
			left[i][j] = draw(&state) % 100, right[i][j] = draw(&state) % 100;
	wanted_sum = sum_of_product();
	run_kernel(argc, argv);
	return 0;
}
