/* Has a thread with its own working directory and umask (unshare(CLONE_FS)). */
#include "victim.h"

#include <sched.h>

static pthread_t thread;
static volatile int is_there, leaves;
static char seen[PATH_MAX];
static volatile mode_t mask;

static void *body(void *unused)
{
	must(unshare(CLONE_FS));
	must(chdir("/proc"));
	umask(0123);
	while (!leaves) {
		mask = umask(0123);
		check(getcwd(seen, sizeof(seen)) != NULL, "getcwd: %m");
		is_there = 1;
		victim_nap(VICTIM_NAP_US);
	}
	return unused;
}

static void setup(void)
{
	thread = victim_thread(body, NULL);
	victim_await(is_there, "the thread does not start");
}

static void verify(void)
{
	char own[PATH_MAX];
	check(getcwd(own, sizeof(own)) != NULL && strcmp(own, "/proc") != 0, "the process is in %s", own);
	check(!leaves && strcmp(seen, "/proc") == 0 && mask == 0123, "the thread is in %s, umask %o", seen, mask);
}

static void finish(void)
{
	leaves = 1;
	must_zero(pthread_join(thread, NULL));
}

static const struct victim victim = { setup, NULL, verify, finish, finish, false };
VICTIM_MAIN(victim)
