/* Proves that POSIX record locks are restored: ranges for writing, the rest of another file for
 * reading, and the lock of a child. */
#include "victim.h"

struct wanted {
	const char *name;
	short type;
	off_t start, length; /* length 0: to the end of the file, also when the file grows */
};

static const struct wanted ours[] = {
	{ "locked", F_WRLCK, 10, 20 },
	{ "locked", F_WRLCK, 40, 1 },
	{ "shared", F_RDLCK, 100, 0 },
};
static const struct wanted childs = { "locked", F_WRLCK, 60, 5 };

static int files[2];
static pid_t child;

static int file_of(const struct wanted *lock)
{
	return files[strcmp(lock->name, "shared") == 0];
}

static void take(const struct wanted *lock)
{
	struct flock all = { .l_type = lock->type, .l_whence = SEEK_SET, .l_start = lock->start, .l_len = lock->length };
	must(fcntl(file_of(lock), F_SETLK, &all));
}

static void child_work(void)
{
	victim_nap(VICTIM_NAP_US);
}

static void setup(void)
{
	char path[PATH_MAX];
	files[0] = must(open(victim_path(path, "locked"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	files[1] = must(open(victim_path(path, "shared"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		take(&ours[i]);
	child = victim_fork();
	if (child == 0) {
		take(&childs);
		victim_child(child_work, NULL);
	}
}

/* Returns the first lock of another process that conflicts with a write lock on [start, start +
 * length). */
static struct flock in_the_way(const struct wanted *lock, off_t start, off_t length)
{
	struct flock found = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
	must(fcntl(file_of(lock), F_GETLK, &found));
	return found;
}

/* Runs in another process. Reports whether the victim's locks are exactly the wanted locks. */
static bool ours_are_there(void)
{
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
		const struct wanted *lock = &ours[i];
		struct flock found = in_the_way(lock, lock->start, 1);
		if (found.l_type != lock->type || found.l_pid != victim_parent || found.l_start != lock->start ||
		    found.l_len != lock->length)
			return false;
		if (in_the_way(lock, lock->start - 1, 1).l_type != F_UNLCK)
			return false;
	}
	return true;
}

static void verify(void)
{
	struct flock found;
	int status = 0;
	pid_t asker = victim_fork();
	if (asker == 0)
		_exit(ours_are_there() ? 0 : 1);
	must(waitpid(asker, &status, 0));
	check(status == 0, "a lock is lost or another one");
	for (int round = 0; round < 1000 && in_the_way(&childs, childs.start, 1).l_type == F_UNLCK; round++)
		victim_nap(VICTIM_NAP_US);
	found = in_the_way(&childs, childs.start, 1);
	check(found.l_type == F_WRLCK && found.l_pid == child && found.l_start == childs.start &&
	      found.l_len == childs.length, "the child's lock is lost or another one");
}

static void sabotage(void)
{
	char path[PATH_MAX];
	/* Closing any descriptor of a file releases all locks of the process on this file. */
	close(must(open(victim_path(path, "locked"), O_RDONLY)));
}

static void finish(void)
{
	victim_end_child(child);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
