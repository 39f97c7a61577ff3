/* Has a thread in its own UTS namespace. Programs that set up networks have such threads. */
#include "victim.h"

#include <sched.h>
#include <sys/utsname.h>

static pthread_t thread;
static volatile int is_there, leaves, lacks;
static struct utsname seen;

static void *body(void *unused)
{
	if (unshare(CLONE_NEWUTS) != 0) {
		lacks = errno;
		is_there = 1;
		return unused;
	}
	must(sethostname("victim", 6));
	while (!leaves) {
		must(uname(&seen));
		is_there = 1;
		victim_nap(VICTIM_NAP_US);
	}
	return unused;
}

static void setup(void)
{
	thread = victim_thread(body, NULL);
	victim_await(is_there, "the thread does not start");
	if (lacks)
		victim_unsupported("unshare: %s", strerror(lacks));
}

static void verify(void)
{
	struct utsname now;
	must(uname(&now));
	check(strcmp(now.nodename, "victim") != 0, "the host of the process is named %s", now.nodename);
	check(!leaves && strcmp(seen.nodename, "victim") == 0, "the host of the thread is named %s", seen.nodename);
}

static void finish(void)
{
	leaves = 1;
	must_zero(pthread_join(thread, NULL));
}

static const struct victim victim = { setup, NULL, verify, finish, finish, false };
VICTIM_MAIN(victim)
