/* Proves that the umask is restored and that new files obey it. */
#include "victim.h"

#define MASK 0137

static void setup(void)
{
	umask(MASK);
}

/* Creates the file with mknod(2), without a descriptor. If a checkpoint contained a descriptor and
 * the program later deleted the file, the checkpoint could not be restored. After a restore, the
 * file of the previous incarnation can exist, or the file of the checkpoint can be missing. */
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
