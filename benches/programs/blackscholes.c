/* Computes the prices of European options with the closed formula of Black and Scholes (1973). The program repeats the
 * computation for the same options. It reads much memory in order, and writes little.
 *
 * Options: options= number of options to price; threads=; out=. In each pass, the sum of the prices of each thread must
 * equal the sum of the first pass. */
#include "kernel.h"
#include <math.h>

#define CHUNK 16384ul

struct terms {
	float spot, strike, rate, volatility, years;
	int32_t is_put;
};

static struct terms *terms;
static float *prices;
static uint64_t option_count;
static double sums[THREADS_MAX], first_sums[THREADS_MAX];

static double below(double x)
{
	return 0.5 * erfc(-x * M_SQRT1_2);
}

static double price(const struct terms *of)
{
	double spread = of->volatility * sqrt(of->years), discounted = of->strike * exp(-of->rate * of->years);
	double d1 = (log(of->spot / of->strike) + (of->rate + 0.5 * of->volatility * of->volatility) * of->years) / spread;
	double call = of->spot * below(d1) - discounted * below(d1 - spread);
	return of->is_put ? call - of->spot + discounted : call;
}

static void chunk(unsigned thread, uint64_t turn)
{
	uint64_t share = option_count / thread_count / CHUNK, first = (share * thread + turn % share) * CHUNK;
	if (turn % share == 0) {
		if (turn == share)
			first_sums[thread] = sums[thread];
		if (turn > share && sums[thread] != first_sums[thread])
			fail("a pass differs from the first");
		sums[thread] = 0;
	}
	double sum = 0;
	for (uint64_t i = first; i < first + CHUNK; i++) {
		prices[i] = (float)price(&terms[i]);
		sum += prices[i];
	}
	sums[thread] += sum;
}

int main(int argc, char **argv)
{
	uint64_t state = 88172645463325252u;
	count_threads(argc, argv);
	option_count = number(argc, argv, "options", 10000000);
	if (option_count / thread_count < CHUNK)
		fail("options");
	terms = memory(option_count * sizeof(*terms));
	prices = memory(option_count * sizeof(*prices));
	for (uint64_t i = 0; i < option_count; i++)
		terms[i] = (struct terms){ 20 + draw(&state) % 8000 / 100.0f, 20 + draw(&state) % 8000 / 100.0f,
					   0.01f + draw(&state) % 9 / 100.0f, 0.05f + draw(&state) % 60 / 100.0f,
					   0.1f + draw(&state) % 40 / 10.0f, (int32_t)(draw(&state) & 1) };
	struct terms known = { 100, 100, 0.05f, 0.2f, 1, 0 };
	if (fabs(price(&known) - 10.4506) > 1e-3)
		fail("the formula");
	run_kernel(argc, argv);
	return 0;
}
