/* A subject that counts and checks itself. In each round it counts in memory, and checks that its
 * registers and its memory are correct. It reports every fourth count, or every count if its end or
 * a descriptor depends on the count. It stores its messages as the target of the symbolic link FILE,
 * and not in a regular file. The reason: if a file that is open for writing at a checkpoint changes
 * later, `run` starts the program from its beginning.
 *
 *   counter FILE            counts until it is killed
 *   counter FILE exit N     exits with 0 at round N
 *   counter FILE fail N     exits with 3 at round N
 *   counter FILE trap F     aborts (SIGABRT) 60 rounds after the file F exists
 *   counter FILE orphan     has a child that outlives it, and that has its standard streams open
 *   counter FILE family N   has N such children
 *   counter FILE exec N     executes its own program again every N rounds
 *   counter FILE fork N     forks a child that exits immediately, every N rounds
 *   counter FILE hold F     keeps the file F open
 *   counter FILE cold N     has N MiB that it writes once, and checks 16 pages of them in each round
 *   counter FILE token R W  keeps its inherited descriptors. In each round, it reads a byte from descriptor R
 *                           and writes it to descriptor W.
 *
 * If a check fails, the program writes `corrupt` and ends with SIGILL. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS (64 * 1024)
#define STEPS 400
#define NAP_NS 200000
#define ROUNDS_TO_DIE 60
/* The file system needs more processor time for a message than the program for a round. */
#define REPORTED_EACH 4

static const char *path;
static uint64_t words[WORDS];

static void say(const char *text)
{
	char fresh[4096];
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	/* A previous incarnation may have left the temporary link. */
	if (symlink(text, fresh) < 0 && (unlink(fresh) < 0 || symlink(text, fresh) < 0))
		return;
	rename(fresh, path);
}

__attribute__((noreturn)) static void corrupt(void)
{
	say("corrupt");
	raise(SIGILL);
	_exit(5);
}

/* Computes eight integer chains and four floating-point chains, whose values are all in registers. */
__attribute__((noinline)) static uint64_t churn(uint64_t seed)
{
	uint64_t a = seed, b = seed + 1, c = seed + 2, d = seed + 3;
	uint64_t e = seed + 4, f = seed + 5, g = seed + 6, h = seed + 7;
	double p = 1.5, q = 2.5, r = 3.5, s = 4.5;
	for (int step = 0; step < STEPS; step++) {
		a = a * 6364136223846793005u + 1;
		b = b * 6364136223846793005u + a;
		c = (c ^ b) * 0x9e3779b97f4a7c15u;
		d = (d << 13 | d >> 51) + c;
		e = e * 3 + d;
		f = (f ^ e) + 7;
		g = (g << 7 | g >> 57) ^ f;
		h = h * 5 + g;
		p = p * 1.0000001 + 0.25;
		q = q + p * 0.5;
		r = r * 0.999999 + q;
		s = s + r * 1e-9;
	}
	uint64_t bits;
	double sum = p + q + r + s;
	memcpy(&bits, &sum, sizeof(bits));
	return a ^ b ^ c ^ d ^ e ^ f ^ g ^ h ^ bits;
}

static uint64_t pattern(uint64_t index, uint64_t turn)
{
	return (index + 1) * 0x9e3779b97f4a7c15u ^ turn;
}

/* Checks a part of the memory for the values of the previous turn, and writes the values of this
 * turn. A turn is one pass over the whole memory. */
static void turn_memory(uint64_t round)
{
	uint64_t stretch = 512, first = round * stretch % WORDS, turn = round * stretch / WORDS;
	for (uint64_t i = first; i < first + stretch; i++) {
		if (words[i] != pattern(i, turn))
			corrupt();
		words[i] = pattern(i, turn + 1);
	}
}

static void say_round(uint64_t round)
{
	char text[32];
	snprintf(text, sizeof(text), "%llu", (unsigned long long)round);
	say(text);
}

static void have_a_child(void)
{
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	if (child < 0 || waitpid(child, NULL, 0) != child)
		corrupt();
}

static void become_a_family(uint64_t children)
{
	for (uint64_t i = 0; i < children; i++) {
		if (fork() == 0) {
			for (;;)
				pause();
		}
	}
}

static uint64_t *make_cold(uint64_t mebibytes)
{
	uint64_t count = mebibytes << 17, *cold = malloc(count * sizeof(*cold));
	if (!cold)
		corrupt();
	for (uint64_t i = 0; i < count; i++)
		cold[i] = i / 64 + 1;
	return cold;
}

static void look_at_cold(const uint64_t *cold, uint64_t mebibytes, uint64_t round)
{
	uint64_t stretch = 16 * 512, first = round * stretch % (mebibytes << 17);
	for (uint64_t i = first; i < first + stretch; i++) {
		if (cold[i] != i / 64 + 1)
			corrupt();
	}
}

static void pass_token(int from, int to)
{
	char token;
	if (read(from, &token, 1) != 1 || write(to, &token, 1) != 1)
		corrupt();
}

static uint64_t rounds_for_each_report(const char *mode)
{
	static const char *const every[] = { "exit", "fail", "trap", "exec", "fork", "token" };
	for (size_t i = 0; i < sizeof(every) / sizeof(*every); i++) {
		if (strcmp(mode, every[i]) == 0)
			return 1;
	}
	return REPORTED_EACH;
}

int main(int argc, char **argv)
{
	const struct timespec nap = { 0, NAP_NS };
	const char *mode = argc > 2 ? argv[2] : "";
	uint64_t limit = argc > 3 ? strtoull(argv[3], NULL, 10) : 0, wanted = churn(1), death = 0;
	uint64_t reported_each = rounds_for_each_report(mode);
	path = argv[1];
	/* Closes the descriptors that the test environment has open. */
	if (strcmp(mode, "token") != 0)
		close_range(3, ~0u, 0);
	for (uint64_t i = 0; i < WORDS; i++)
		words[i] = pattern(i, 0);
	if (strcmp(mode, "orphan") == 0)
		become_a_family(1);
	if (strcmp(mode, "family") == 0)
		become_a_family(limit);
	if (strcmp(mode, "hold") == 0 && open(argv[3], O_RDONLY) < 0)
		return 6;
	uint64_t *cold = strcmp(mode, "cold") == 0 ? make_cold(limit) : NULL;
	for (uint64_t round = 0;; round++) {
		if (churn(1) != wanted)
			corrupt();
		turn_memory(round);
		if (cold)
			look_at_cold(cold, limit, round);
		if (strcmp(mode, "token") == 0)
			pass_token((int)limit, atoi(argv[4]));
		if (round % reported_each == 0)
			say_round(round);
		if (strcmp(mode, "exit") == 0 && round >= limit)
			return 0;
		if (strcmp(mode, "fail") == 0 && round >= limit)
			return 3;
		if (strcmp(mode, "exec") == 0 && round >= limit)
			execv("/proc/self/exe", argv);
		if (strcmp(mode, "fork") == 0 && round % limit == 0)
			have_a_child();
		if (strcmp(mode, "trap") == 0 && death == 0 && access(argv[3], F_OK) == 0)
			death = round + ROUNDS_TO_DIE;
		if (death != 0 && round >= death)
			abort();
		nanosleep(&nap, NULL);
	}
}
