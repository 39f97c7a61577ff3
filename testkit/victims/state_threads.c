/* Proves that threads are restored: number, ids, names, signal masks, thread-local storage, stacks,
 * contended mutexes, waiters on a condition variable, and joining. The robust list works: the owner
 * of a robust mutex dies only after the restore. */
#include "victim.h"

#include <sched.h>

#define WORKERS 8
#define WAITERS 2
#define LOCAL_WORDS 64

struct worker {
	int number;
	pthread_t thread;
	volatile pid_t tid;
	volatile unsigned long rounds;
};

static struct worker workers[WORKERS];
static pthread_t waiters[WAITERS], robust_owner;
static pthread_mutex_t counter_lock = PTHREAD_MUTEX_INITIALIZER, door_lock = PTHREAD_MUTEX_INITIALIZER, robust_lock;
static pthread_cond_t door = PTHREAD_COND_INITIALIZER;
static unsigned long counter_one, counter_two;
static volatile int waiting, door_open, through, owner_holds, leave;
static __thread uint64_t own_words[LOCAL_WORDS];
static __thread pid_t own_tid;

static void mask_of(int number, sigset_t *mask)
{
	sigfillset(mask);
	sigdelset(mask, SIGRTMIN + 3 + number);
}

/* Not inlined: otherwise the compiler folds it into the loops, and creates an invalid address of
 * thread-local storage. */
__attribute__((noinline)) static uint64_t word_of(int thread, int index)
{
	return victim_mix((uint64_t)thread * 1000 + (uint64_t)index);
}

static void check_self(const struct worker *self)
{
	char name[16], expected[16];
	sigset_t mask, want;
	snprintf(expected, sizeof(expected), "worker <%d> \xc3\xa9", self->number);
	must(prctl(PR_GET_NAME, name));
	check(strcmp(name, expected) == 0, "thread %d is named [%s]", self->number, name);
	check(syscall(SYS_gettid) == self->tid && own_tid == self->tid, "thread %d: tid was %d, is %ld", self->number,
	      self->tid, (long)syscall(SYS_gettid));
	check(pthread_equal(pthread_self(), self->thread), "thread %d: pthread_self changed", self->number);
	must_zero(pthread_sigmask(SIG_SETMASK, NULL, &mask));
	mask_of(self->number, &want);
	for (int signal = 1; signal < SIGRTMAX; signal++)
		if (signal != SIGKILL && signal != SIGSTOP && (signal < 32 || signal >= SIGRTMIN))
			check(sigismember(&mask, signal) == sigismember(&want, signal), "thread %d: mask of signal %d",
			      self->number, signal);
	for (int i = 0; i < LOCAL_WORDS; i++)
		check(own_words[i] == word_of(self->number, i) + self->rounds,
		      "thread %d: thread-local word %d is wrong", self->number, i);
}

static void *work_on(void *argument)
{
	struct worker *self = argument;
	char name[16];
	sigset_t mask;
	snprintf(name, sizeof(name), "worker <%d> \xc3\xa9", self->number);
	must(prctl(PR_SET_NAME, name));
	mask_of(self->number, &mask);
	must_zero(pthread_sigmask(SIG_SETMASK, &mask, NULL));
	own_tid = (pid_t)syscall(SYS_gettid);
	for (int i = 0; i < LOCAL_WORDS; i++)
		own_words[i] = word_of(self->number, i);
	self->tid = own_tid;
	victim_await(pthread_equal(self->thread, pthread_self()), "pthread_create does not return");
	while (!leave) {
		check_self(self);
		must_zero(pthread_mutex_lock(&counter_lock));
		check(counter_one == counter_two, "the mutex does not exclude");
		counter_one++;
		sched_yield();
		counter_two++;
		must_zero(pthread_mutex_unlock(&counter_lock));
		for (int i = 0; i < LOCAL_WORDS; i++)
			own_words[i]++;
		self->rounds++;
		victim_nap(VICTIM_NAP_US);
	}
	return self;
}

static void *wait_at_door(void *unused)
{
	must_zero(pthread_mutex_lock(&door_lock));
	waiting++;
	while (!door_open)
		must_zero(pthread_cond_wait(&door, &door_lock));
	through++;
	must_zero(pthread_mutex_unlock(&door_lock));
	return unused;
}

/* Holds the robust mutex, and exits without unlocking it. */
static void *hold_robust(void *unused)
{
	must_zero(pthread_mutex_lock(&robust_lock));
	owner_holds = 1;
	while (!leave)
		victim_nap(VICTIM_NAP_US);
	return unused;
}

static void setup(void)
{
	pthread_mutexattr_t attributes;
	must_zero(pthread_mutexattr_init(&attributes));
	must_zero(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
	must_zero(pthread_mutex_init(&robust_lock, &attributes));
	for (int i = 0; i < WORKERS; i++) {
		workers[i].number = i;
		workers[i].thread = victim_thread(work_on, &workers[i]);
	}
	for (int i = 0; i < WAITERS; i++)
		waiters[i] = victim_thread(wait_at_door, NULL);
	robust_owner = victim_thread(hold_robust, NULL);
	victim_await(waiting == WAITERS && owner_holds, "the threads do not start");
	for (int i = 0; i < WORKERS; i++)
		victim_await(workers[i].rounds > 0, "thread %d does not start", i);
}

static void verify(void)
{
	char path[64];
	for (int i = 0; i < WORKERS; i++) {
		unsigned long before = workers[i].rounds;
		victim_await(workers[i].rounds > before, "thread %d stands still", i);
		snprintf(path, sizeof(path), "/proc/self/task/%d", workers[i].tid);
		check(access(path, F_OK) == 0, "there is no thread %d", workers[i].tid);
	}
	check(through == 0, "a waiter came through the closed door");
	must_zero(pthread_mutex_trylock(&robust_lock) == EBUSY ? 0 : EINVAL);
}

static void sabotage(void)
{
	must_zero(pthread_setname_np(workers[3].thread, "impostor"));
}

static void finish(void)
{
	void *result;
	must_zero(pthread_mutex_lock(&door_lock));
	door_open = 1;
	must_zero(pthread_cond_broadcast(&door));
	must_zero(pthread_mutex_unlock(&door_lock));
	for (int i = 0; i < WAITERS; i++)
		must_zero(pthread_join(waiters[i], NULL));
	check(through == WAITERS, "%d of %d waiters came through the door", through, WAITERS);
	leave = 1;
	for (int i = 0; i < WORKERS; i++) {
		must_zero(pthread_join(workers[i].thread, &result));
		check(result == &workers[i], "thread %d returned something else", i);
	}
	check(counter_one == counter_two && counter_one > WORKERS, "the counters are %lu and %lu", counter_one, counter_two);
	must_zero(pthread_join(robust_owner, NULL));
	int error = pthread_mutex_lock(&robust_lock);
	check(error == EOWNERDEAD, "the robust mutex of a dead owner gave %s", strerror(error));
	must_zero(pthread_mutex_consistent(&robust_lock));
	must_zero(pthread_mutex_unlock(&robust_lock));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
