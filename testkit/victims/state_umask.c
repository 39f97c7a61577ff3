/* Proves that the umask comes back and that new files obey it. */
#include "victim.h"

#define MASK 0137

static void setup(void)
{
	umask(MASK);
}

/* Without a descriptor: a checkpoint that has one of a file that is gone later cannot be restored. Whoever is restored
 * may find the file of an earlier life, or miss its own. */
static void work(void)
{
	char path[PATH_MAX];
	struct stat status;
	victim_path(path, "made");
	while (mknod(path, S_IFREG | 0777, 0)) {
		check(errno == EEXIST, "a file cannot be made: %m");
		unlink(path);
	}
	if (stat(path, &status)) {
		check(errno == ENOENT, "a new file cannot be looked at: %m");
		return;
	}
	unlink(path);
	check((status.st_mode & 0777) == (0777 & ~MASK), "a new file has mode %o", status.st_mode & 0777);
}

static void verify(void)
{
	mode_t now = umask(MASK);
	check(now == MASK, "umask is %o, was %o", now, MASK);
	work();
}

static void sabotage(void)
{
	umask(022);
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
