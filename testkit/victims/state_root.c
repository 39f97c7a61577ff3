/* Has a child with another root directory (chroot). The child finds its own marker file in `/`, and
 * no file from outside the directory. */
#include "victim.h"

static pid_t child;
static ino_t root_inode;

static void work_inside(void)
{
	struct stat status;
	must(stat("/", &status));
	check(status.st_ino == root_inode, "/ is another directory");
	close(must(open("/marker", O_RDONLY | O_CLOEXEC)));
	must_fail_with(open("/proc/self/stat", O_RDONLY), ENOENT);
}

static void setup(void)
{
	char path[PATH_MAX];
	struct stat status;
	struct victim_gate gate = victim_gate_make();
	must(mkdir(victim_path(path, "root"), 0755));
	must(stat(path, &status));
	root_inode = status.st_ino;
	child = victim_fork();
	if (child == 0) {
		must(chdir(path));
		if (chroot(".") != 0)
			victim_unsupported("chroot: %m");
		close(must(open("/marker", O_WRONLY | O_CREAT | O_CLOEXEC, 0600)));
		work_inside();
		victim_gate_open(gate);
		victim_child(work_inside, work_inside);
	}
	victim_gate_wait(gate);
}

static void verify(void)
{
	char link[64], target[PATH_MAX], path[PATH_MAX];
	struct stat status;
	snprintf(link, sizeof(link), "/proc/%d/root", child);
	ssize_t length = must(readlink(link, target, sizeof(target) - 1));
	target[length] = 0;
	check(strcmp(target, victim_path(path, "root")) == 0, "root of the child is %s", target);
	must(stat("/", &status));
	check(status.st_ino != root_inode, "the parent's root changed too");
}

static void sabotage(void)
{
	char path[PATH_MAX];
	must(unlink(victim_path(path, "root/marker")));
}

static void finish(void)
{
	victim_end_child(child);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
