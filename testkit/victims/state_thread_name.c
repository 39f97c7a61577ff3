/* Proves that the names of threads are restored, also a name with non-ASCII bytes and an empty
 * name. */
#include "victim.h"

static const char *const names[] = { "leader \xc3\xa9", "fifteen-bytes-x", "" };
static pthread_t threads[2];
static volatile int leave;

static void check_name(int number)
{
	char name[16];
	must(prctl(PR_GET_NAME, name));
	check(strcmp(name, names[number]) == 0, "thread %d is named [%s]", number, name);
}

static void *named(void *argument)
{
	int number = (int)(intptr_t)argument;
	must(prctl(PR_SET_NAME, names[number]));
	while (!leave) {
		check_name(number);
		victim_nap(1000);
	}
	return NULL;
}

static void setup(void)
{
	must(prctl(PR_SET_NAME, names[0]));
	for (int i = 0; i < 2; i++)
		threads[i] = victim_thread(named, (void *)(intptr_t)(i + 1));
}

static void verify(void)
{
	check_name(0);
}

static void sabotage(void)
{
	must(prctl(PR_SET_NAME, "another"));
}

static void finish(void)
{
	leave = 1;
	for (int i = 0; i < 2; i++)
		must_zero(pthread_join(threads[i], NULL));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
