/* Works in a directory that was removed. */
#include "victim.h"

static void setup(void)
{
	char path[PATH_MAX];
	must(mkdir(victim_path(path, "gone"), 0755));
	must(chdir(path));
	must(rmdir(path));
}

static void verify(void)
{
	char link[PATH_MAX] = "";
	must(readlink("/proc/self/cwd", link, sizeof(link) - 1));
	check(strstr(link, "(deleted)") != NULL, "the working directory is %s", link);
	must_fail_with(open("file", O_WRONLY | O_CREAT, 0600), ENOENT);
}

static void sabotage(void)
{
	must(chdir("/"));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
