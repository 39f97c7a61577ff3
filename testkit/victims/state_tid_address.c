/* Proves that the word that the kernel clears at the end of a thread (set_tid_address(2)) stays
 * registered. Its address is the same, and a thread that ends after the restore can be joined. */
#include "victim.h"

#define PR_GET_TID_ADDRESS_NUMBER 40

static int *before;
static pthread_t thread;
static volatile int leave;

static int *own(void)
{
	int *address = NULL;
	if (prctl(PR_GET_TID_ADDRESS_NUMBER, &address, 0, 0, 0) != 0)
		victim_unsupported("PR_GET_TID_ADDRESS");
	return address;
}

static void *other(void *argument)
{
	int *mine = own();
	while (!leave) {
		check(own() == mine, "the other thread's word was at %p, is at %p", (void *)mine, (void *)own());
		victim_nap(1000);
	}
	return argument;
}

static void setup(void)
{
	before = own();
	thread = victim_thread(other, (void *)&leave);
}

static void verify(void)
{
	check(own() == before, "the word was at %p, is at %p", (void *)before, (void *)own());
}

static void sabotage(void)
{
	static int elsewhere;
	syscall(SYS_set_tid_address, &elsewhere);
}

static void finish(void)
{
	void *result = NULL;
	leave = 1;
	must_zero(pthread_join(thread, &result));
	check(result == (void *)&leave, "the joined thread returned %p", result);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
