/* Proves that the working directory is restored and that relative paths are resolved from it. Its
 * name has spaces, a line break and non-ASCII bytes. */
#include "victim.h"

static char directory[PATH_MAX];
static struct stat expected;

static void setup(void)
{
	must(mkdir(victim_path(directory, "sub dir \xc3\xbc\nline"), 0711));
	must(chdir(directory));
	close(must(open("marker", O_WRONLY | O_CREAT, 0600)));
	must(stat(".", &expected));
}

static void work(void)
{
	close(must(open("marker", O_RDONLY)));
}

static void verify(void)
{
	char now[PATH_MAX];
	struct stat status;
	check(getcwd(now, sizeof(now)) != NULL && strcmp(now, directory) == 0, "cwd is [%s], was [%s]", now, directory);
	must(stat(".", &status));
	check(status.st_ino == expected.st_ino && status.st_dev == expected.st_dev, "cwd is another directory");
	work();
}

static void sabotage(void)
{
	must(chdir(".."));
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
