/* Has more control groups below its own group (257) than an image stores (256). */
#include "victim_cgroup.h"

#define GROUPS 257

static char hierarchy[256];

static void group(int number, char path[PATH_MAX + 128])
{
	snprintf(path, PATH_MAX + 128, "%s/%d", victim_cgroup, number);
}

static void setup(void)
{
	char path[PATH_MAX + 128];
	victim_cgroup_find(hierarchy);
	victim_cgroup_make();
	for (int i = 0; i < GROUPS; i++) {
		group(i, path);
		must(mkdir(path, 0755));
	}
}

static void verify(void)
{
	char path[PATH_MAX + 128];
	int missing = 0;
	for (int i = 0; i < GROUPS; i++) {
		group(i, path);
		missing += access(path, F_OK) != 0;
	}
	if (missing > 0)
		victim_cgroup_leave();
	check(missing == 0, "%d groups are gone", missing);
}

static void sabotage(void)
{
	char path[PATH_MAX + 128];
	group(GROUPS / 2, path);
	must(rmdir(path));
}

static const struct victim victim = { setup, NULL, verify, sabotage, victim_cgroup_leave, false };
VICTIM_MAIN(victim)
