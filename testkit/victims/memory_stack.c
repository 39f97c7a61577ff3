/* Proves that stacks are restored and still grow. At the checkpoint, the main thread is deep in a
 * recursion, and each frame is checked on return. A thread does the same on its own stack. After
 * the restore, both recurse much deeper. */
#include "victim.h"

#define FRAME_BYTES 2000
#define DEPTH 60
#define DEPTH_AT_END 2500 /* about 5 MiB: more than used before, less than the usual limit */
#define THREAD_STACK_BYTES (8u << 20)

static pthread_t thread;
static volatile unsigned long rounds;
static volatile int leave, damage;

/* Not inlined and not converted to a loop, so that each level has its own frame. */
__attribute__((noinline)) static unsigned descend(unsigned depth, uint64_t seed, bool nap)
{
	unsigned char frame[FRAME_BYTES];
	victim_fill(frame, sizeof(frame), seed + depth);
	unsigned reached = 1;
	if (depth > 1)
		reached += descend(depth - 1, seed, nap);
	else if (nap)
		victim_nap(5 * VICTIM_NAP_US);
	frame[FRAME_BYTES / 2] ^= (unsigned char)(depth == DEPTH / 2 && damage);
	ssize_t wrong = victim_differs(frame, sizeof(frame), seed + depth);
	check(wrong < 0, "frame %u: byte %zd is wrong", depth, wrong);
	return reached;
}

static void *body(void *unused)
{
	while (!leave) {
		check(descend(DEPTH, 7000 + rounds, true) == DEPTH, "the recursion lost frames");
		rounds++;
	}
	check(descend(DEPTH_AT_END, 1, false) == DEPTH_AT_END, "the recursion lost frames");
	return unused;
}

static void setup(void)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	sigfillset(&all);
	must_zero(pthread_attr_init(&attributes));
	must_zero(pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES));
	must_zero(pthread_sigmask(SIG_SETMASK, &all, &before));
	must_zero(pthread_create(&thread, &attributes, body, NULL));
	must_zero(pthread_sigmask(SIG_SETMASK, &before, NULL));
}

static void work(void)
{
	check(descend(DEPTH, victim_ticks, true) == DEPTH, "the recursion lost frames");
}

static void verify(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int stacks = 0;
	char here;
	check(maps != NULL, "maps: %m");
	while (fgets(line, sizeof(line), maps) != NULL) {
		unsigned long start, end;
		if (strstr(line, "[stack]") != NULL && sscanf(line, "%lx-%lx", &start, &end) == 2) {
			check(start <= (uintptr_t)&here && (uintptr_t)&here < end, "the stack is elsewhere: %s", line);
			stacks++;
		}
	}
	fclose(maps);
	check(stacks == 1, "there are %d stacks", stacks);
	unsigned long before = rounds;
	victim_await(rounds > before, "the thread stands still");
}

/* Changes one bit of one frame during the returns of the recursion. */
static void sabotage(void)
{
	damage = 1;
}

static void finish(void)
{
	check(descend(DEPTH_AT_END, 1, false) == DEPTH_AT_END, "the recursion lost frames");
	leave = 1;
	must_zero(pthread_join(thread, NULL));
}

static const struct victim victim = { setup, work, verify, sabotage, finish, true };
VICTIM_MAIN(victim)
