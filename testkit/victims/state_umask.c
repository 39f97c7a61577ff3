/* Proves that the umask comes back and that new files obey it. */
#include "victim.h"

#define MASK 0137

static void setup(void)
{
	umask(MASK);
}

static void work(void)
{
	char path[PATH_MAX];
	struct stat status;
	/* One that was killed between the two calls below has left it. */
	unlink(victim_path(path, "made"));
	int fd = must(open(victim_path(path, "made"), O_WRONLY | O_CREAT | O_EXCL, 0777));
	must(fstat(fd, &status));
	close(fd);
	must(unlink(path));
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
