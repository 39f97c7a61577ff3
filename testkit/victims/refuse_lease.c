/* Has a write lease on a deleted file. To save the content of the file, a checkpoint would open the
 * file, and this would break the lease. */
#include "victim.h"

static int file;

static void setup(void)
{
	char path[PATH_MAX];
	file = must(open(victim_path(path, "leased"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	must(unlink(path));
	if (fcntl(file, F_SETLEASE, F_WRLCK) != 0)
		victim_unsupported("F_SETLEASE: %m");
}

static void verify(void)
{
	check(fcntl(file, F_GETLEASE) == F_WRLCK, "the lease is %d", fcntl(file, F_GETLEASE));
}

static void sabotage(void)
{
	must(fcntl(file, F_SETLEASE, F_UNLCK));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
