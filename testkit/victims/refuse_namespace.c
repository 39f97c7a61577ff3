/* Runs in its own UTS and IPC namespaces. */
#include "victim.h"

#include <sched.h>
#include <sys/utsname.h>

static struct stat own;

static void setup(void)
{
	if (unshare(CLONE_NEWUTS | CLONE_NEWIPC) != 0)
		victim_unsupported("unshare: %m");
	must(sethostname("victim", 6));
	must(stat("/proc/self/ns/ipc", &own));
}

static void verify(void)
{
	struct utsname name;
	struct stat now;
	must(uname(&name));
	check(strcmp(name.nodename, "victim") == 0, "the host is named %s", name.nodename);
	must(stat("/proc/self/ns/ipc", &now));
	check(now.st_ino == own.st_ino, "the IPC namespace is another one");
}

static void sabotage(void)
{
	must(sethostname("other", 5));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
