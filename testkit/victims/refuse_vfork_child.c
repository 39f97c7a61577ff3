/* Has a thread that waits in vfork: the child shares its memory, and has not yet called exec or
 * exit. */
#include "victim.h"

#include <sched.h>

static pthread_t thread;
static volatile pid_t child;
static volatile int child_leaves, thread_returned;

/* The child only sleeps and uses shared variables. The thread calls clone(2) and not vfork(2),
 * because the compiler must not see that code runs twice in one stack frame. */
static int child_body(void *unused)
{
	(void)unused;
	child = (pid_t)syscall(SYS_getpid);
	while (!child_leaves)
		victim_nap(VICTIM_NAP_US);
	syscall(SYS_exit, 0);
	return 0;
}

static void *body(void *unused)
{
	static unsigned char stack[65536] __attribute__((aligned(16)));
	int status = 0;
	pid_t pid = clone(child_body, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
	check(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "vfork child: status 0x%x: %m", status);
	thread_returned = 1;
	return unused;
}

static void setup(void)
{
	thread = victim_thread(body, NULL);
	victim_await(child != 0, "the child does not start");
}

static void verify(void)
{
	check(!thread_returned, "vfork returned");
	check(kill(child, 0) == 0, "the child is gone: %m");
}

static void sabotage(void)
{
	child_leaves = 1;
	victim_await(thread_returned, "vfork does not return");
}

static void finish(void)
{
	child_leaves = 1;
	must_zero(pthread_join(thread, NULL));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
