/* Proves that the robust list stays registered with its head and length, for the main thread and
 * another thread. */
#include "victim.h"

struct registration {
	void *head;
	size_t length;
};

static struct registration before[2];
static pthread_t thread;
static volatile int ready, leave;

static struct registration own(void)
{
	struct registration now;
	must(syscall(SYS_get_robust_list, 0, &now.head, &now.length));
	return now;
}

static void check_own(int number)
{
	struct registration now = own();
	check(now.head == before[number].head, "thread %d: head was %p, is %p", number, before[number].head, now.head);
	check(now.length == before[number].length, "thread %d: length was %zu, is %zu", number, before[number].length,
	      now.length);
}

static void *other(void *argument)
{
	(void)argument;
	before[1] = own();
	ready = 1;
	while (!leave) {
		check_own(1);
		victim_nap(1000);
	}
	return NULL;
}

static void setup(void)
{
	before[0] = own();
	check(before[0].head != NULL, "the C library registered no robust list");
	thread = victim_thread(other, NULL);
	while (!ready)
		victim_nap(100);
}

static void verify(void)
{
	check_own(0);
}

static void sabotage(void)
{
	static struct { void *next; long offset; void *pending; } another = { &another, 0, NULL };
	must(syscall(SYS_set_robust_list, &another, sizeof(another)));
}

static void finish(void)
{
	leave = 1;
	must_zero(pthread_join(thread, NULL));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
