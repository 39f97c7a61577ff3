/* Holds a lock of the flock kind. */
#include "victim.h"

#include <sys/file.h>

static int file;
static char path[PATH_MAX];

static void setup(void)
{
	file = must(open(victim_path(path, "locked"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	must(flock(file, LOCK_EX));
}

static void verify(void)
{
	int other = must(open(path, O_RDWR | O_CLOEXEC));
	must_fail_with(flock(other, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	close(other);
}

static void sabotage(void)
{
	must(flock(file, LOCK_UN));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
