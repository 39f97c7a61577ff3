/* Has a thread with its own descriptor table (unshare(CLONE_FILES)). One descriptor number refers
 * to two files. */
#include "victim.h"

#include <sched.h>

static pthread_t thread;
static volatile int leaves;
static volatile ino_t seen;
static struct stat own, other;
static int number;

static void *body(void *unused)
{
	int zero;
	must(unshare(CLONE_FILES));
	zero = must(open("/dev/zero", O_RDONLY | O_CLOEXEC));
	must(dup3(zero, number, O_CLOEXEC));
	must(close(zero));
	while (!leaves) {
		struct stat now;
		must(fstat(number, &now));
		seen = now.st_ino;
		victim_nap(VICTIM_NAP_US);
	}
	return unused;
}

static void setup(void)
{
	number = must(open("/dev/null", O_RDONLY | O_CLOEXEC));
	must(fstat(number, &own));
	must(stat("/dev/zero", &other));
	thread = victim_thread(body, NULL);
	victim_await(seen != 0, "the thread does not start");
}

static void verify(void)
{
	struct stat now;
	must(fstat(number, &now));
	check(now.st_ino == own.st_ino, "the process has another file");
	check(!leaves && seen == other.st_ino, "the thread has another file");
}

static void finish(void)
{
	leaves = 1;
	must_zero(pthread_join(thread, NULL));
}

static const struct victim victim = { setup, NULL, verify, finish, finish, false };
VICTIM_MAIN(victim)
