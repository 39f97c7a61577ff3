/* Proves that a removed working directory is restored as a removed directory, with its mode and its
 * former name. The program, a child and a descriptor refer to the same directory. */
#include "victim.h"

#define MODE 0711

static int opened;
static pid_t child;
static char expected[PATH_MAX];

static void read_link(char link[PATH_MAX])
{
	ssize_t length = must(readlink("/proc/self/cwd", link, PATH_MAX - 1));
	link[length] = 0;
}

/* Reads the status of the working directory and of the descriptor. A restore creates another
 * directory with another inode number, so both must be read before or both after a restore. */
static void look(struct stat *here, struct stat *there)
{
	struct stat again;
	do {
		must(stat(".", here));
		must(fstat(opened, there));
		must(stat(".", &again));
	} while (again.st_ino != here->st_ino);
}

static void check_cwd(void)
{
	char link[PATH_MAX];
	struct stat here, there;
	look(&here, &there);
	check(S_ISDIR(here.st_mode) && (here.st_mode & 07777) == MODE, "pid %d: mode is %o", getpid(), here.st_mode);
	check(here.st_ino == there.st_ino && here.st_dev == there.st_dev, "pid %d: cwd and descriptor differ", getpid());
	must_fail_with(open("file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600), ENOENT);
	read_link(link);
	check(strcmp(link, expected) == 0, "pid %d: cwd is %s, was %s", getpid(), link, expected);
}

static void setup(void)
{
	char path[PATH_MAX];
	struct victim_gate gate = victim_gate_make();
	must(mkdir(victim_path(path, "above"), 0755));
	must(mkdir(victim_path(path, "above/gone"), MODE));
	must(chmod(path, MODE));
	must(chdir(path));
	opened = must(open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	must(rmdir(path));
	must(rmdir(victim_path(path, "above")));
	read_link(expected);
	check(strstr(expected, " (deleted)") != NULL, "the working directory is %s", expected);
	child = victim_fork();
	if (child == 0) {
		victim_gate_open(gate);
		victim_child(check_cwd, check_cwd);
	}
	victim_gate_wait(gate);
}

static void verify(void)
{
	char path[PATH_MAX];
	check_cwd();
	must_fail_with(access(victim_path(path, "above"), F_OK), ENOENT);
}

static void sabotage(void)
{
	must(chdir("/"));
}

static void finish(void)
{
	victim_end_child(child);
}

static const struct victim victim = { setup, check_cwd, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
