/* Proves that restartable sequences stay registered, for the main thread and another thread. The
 * kernel still writes the processor number into the rseq area, also when the thread has moved to
 * another processor. A second registration fails. */
#include "victim.h"

#include <sched.h>
#include <sys/rseq.h>

/* The length that the C library registers: 32 bytes originally, and more if the kernel has more
 * features. */
#define REGISTERED_BYTES (__rseq_size < 32 ? 32 : __rseq_size)

static pthread_t thread;
static volatile unsigned long rounds;
static volatile int leave;

static volatile struct rseq *own_area(void)
{
	return (volatile struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* Compares the rseq area with getcpu(2). Repeats the comparison if the thread has moved meanwhile. */
static void check_processor(void)
{
	unsigned before, after, area;
	int library;
	do {
		must(syscall(SYS_getcpu, &before, NULL, NULL));
		area = own_area()->cpu_id;
		library = sched_getcpu();
		must(syscall(SYS_getcpu, &after, NULL, NULL));
	} while (before != after);
	check(area == before, "the area says processor %d, the kernel says %u", (int)area, before);
	check(library == (int)before, "sched_getcpu says %d, the kernel says %u", library, before);
}

/* Moves the calling thread to each allowed processor, and checks the rseq area there. */
static void work(void)
{
	cpu_set_t allowed, one;
	must(sched_getaffinity(0, sizeof(allowed), &allowed));
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		must(sched_setaffinity(0, sizeof(one), &one));
		check_processor();
	}
	must(sched_setaffinity(0, sizeof(allowed), &allowed));
}

static void check_registered(void)
{
	/* A repeated registration fails with EBUSY. Without the first registration, it would
	 * succeed. */
	must_fail_with(syscall(SYS_rseq, own_area(), REGISTERED_BYTES, 0, RSEQ_SIG), EBUSY);
}

static void *body(void *unused)
{
	while (!leave) {
		work();
		check_registered();
		rounds++;
		victim_nap(VICTIM_NAP_US);
	}
	return unused;
}

static void setup(void)
{
	if (__rseq_size == 0)
		victim_unsupported("the C library has registered no rseq area");
	thread = victim_thread(body, NULL);
}

static void verify(void)
{
	unsigned long before = rounds;
	check_registered();
	work();
	victim_await(rounds > before, "the thread stands still");
}

static void sabotage(void)
{
	must(syscall(SYS_rseq, own_area(), REGISTERED_BYTES, RSEQ_FLAG_UNREGISTER, RSEQ_SIG));
	own_area()->cpu_id = 4000;
}

static void finish(void)
{
	leave = 1;
	must_zero(pthread_join(thread, NULL));
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
