/* Proves that a thread still holds its robust mutexes in a shared file (lock.mdb of LMDB) after a
 * restore. When a thread dies, the kernel marks the mutexes on its robust list. The file would then
 * no longer match the memory. The file is mapped and open for writing, as in LMDB. */
#include <linux/futex.h>

#include "victim_file.h"

#define MUTEXES 2

static pthread_mutex_t *mutexes;
static pthread_t thread;
static volatile int ready, leave;

static void check_owner(const char *when)
{
	for (int i = 0; i < MUTEXES; i++) {
		int owner = mutexes[i].__data.__lock & FUTEX_TID_MASK;
		check(!(mutexes[i].__data.__lock & FUTEX_OWNER_DIED), "%s: mutex %d is marked: its owner died", when, i);
		check(owner == mutexes[i].__data.__owner, "%s: mutex %d has the owner %d, not %d", when, i, owner,
		      mutexes[i].__data.__owner);
	}
}

static void *holder(void *argument)
{
	(void)argument;
	for (int i = 0; i < MUTEXES; i++)
		must_zero(pthread_mutex_lock(&mutexes[i]));
	ready = 1;
	while (!leave)
		victim_nap(1000);
	for (int i = 0; i < MUTEXES; i++)
		must_zero(pthread_mutex_unlock(&mutexes[i]));
	return NULL;
}

static void setup(void)
{
	pthread_mutexattr_t robust;
	int file = victim_make_file("lock", VICTIM_PAGE, 1);
	mutexes = (void *)victim_map(VICTIM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	must_zero(pthread_mutexattr_init(&robust));
	must_zero(pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED));
	must_zero(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST));
	for (int i = 0; i < MUTEXES; i++)
		must_zero(pthread_mutex_init(&mutexes[i], &robust));
	thread = victim_thread(holder, NULL);
	while (!ready)
		victim_nap(100);
}

static void verify(void)
{
	check_owner("verdict");
	check(pthread_mutex_trylock(&mutexes[0]) == EBUSY, "the mutex is free");
}

static void sabotage(void)
{
	mutexes[1].__data.__lock |= FUTEX_OWNER_DIED;
}

static void finish(void)
{
	leave = 1;
	must_zero(pthread_join(thread, NULL));
	for (int i = 0; i < MUTEXES; i++)
		must_zero(pthread_mutex_lock(&mutexes[i]));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
