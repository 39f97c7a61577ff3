/* Holds a lock that belongs to the open file description. */
#include "victim.h"

static int file;
static char path[PATH_MAX];

static void setup(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 5 };
	file = must(open(victim_path(path, "locked"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	must(fcntl(file, F_OFD_SETLK, &lock));
}

static void verify(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 7, .l_len = 1 };
	int other = must(open(path, O_RDWR | O_CLOEXEC));
	must(fcntl(other, F_OFD_GETLK, &lock));
	check(lock.l_type == F_WRLCK, "the lock is lost");
	close(other);
}

static void sabotage(void)
{
	struct flock lock = { .l_type = F_UNLCK, .l_whence = SEEK_SET };
	must(fcntl(file, F_OFD_SETLK, &lock));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
