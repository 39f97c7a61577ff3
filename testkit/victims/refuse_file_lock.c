/* Holds a POSIX record lock. */
#include "victim.h"

static int file;
static char path[PATH_MAX];

static void setup(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 20 };
	file = must(open(victim_path(path, "locked"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	must(fcntl(file, F_SETLK, &lock));
}

/* A child asks who holds the lock: one's own locks do not show. */
static void verify(void)
{
	int status = 0;
	pid_t child = victim_fork();
	if (child == 0) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 15, .l_len = 1 };
		must(fcntl(file, F_GETLK, &lock));
		_exit(lock.l_type == F_WRLCK && lock.l_pid == victim_parent ? 0 : 1);
	}
	must(waitpid(child, &status, 0));
	check(status == 0, "the lock is lost");
}

static void sabotage(void)
{
	close(must(open(path, O_RDONLY)));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
