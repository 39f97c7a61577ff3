/* Has a working directory that was the directory of a control group, and was removed. */
#include "victim_cgroup.h"

static void setup(void)
{
	char hierarchy[256];
	victim_cgroup_find(hierarchy);
	snprintf(victim_cgroup, sizeof(victim_cgroup), "%s/victim-%d", victim_cgroup_home, (int)getpid());
	if (mkdir(victim_cgroup, 0755) != 0)
		victim_unsupported("control groups cannot be made: %m");
	must(chdir(victim_cgroup));
	must(rmdir(victim_cgroup));
}

static void verify(void)
{
	char link[PATH_MAX] = "";
	must(readlink("/proc/self/cwd", link, sizeof(link) - 1));
	check(strstr(link, "(deleted)") != NULL, "the working directory is %s", link);
}

static void sabotage(void)
{
	must(chdir("/"));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
