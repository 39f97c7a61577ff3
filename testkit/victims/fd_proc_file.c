/* Proves that open files and directories of /proc are restored with their positions, if they belong
 * to processes of the tree. They belong to the program itself or to a child, and one file is shared
 * by both. */
#include "victim.h"

#define SKIPPED 5

static int own_stat, child_status, own_directory, shared;
static pid_t child;

static int open_of(pid_t pid, const char *name, int flags)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	return must(open(path, flags | O_CLOEXEC));
}

static void check_pid(int fd, const char *format, pid_t wanted)
{
	char text[2048];
	int found = 0;
	ssize_t got = pread(fd, text, sizeof(text) - 1, 0);
	check(got > 0, "pread: %m");
	text[got] = 0;
	const char *line = strstr(text, format);
	check(line != NULL && sscanf(line + strlen(format), "%d", &found) == 1 && found == wanted,
	      "it is of pid %d, not of %d", found, wanted);
}

static void check_shared(void)
{
	check_pid(shared, "\nPid:", victim_parent);
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	shared = open_of(getpid(), "status", O_RDONLY);
	child = victim_fork();
	if (child == 0) {
		victim_gate_open(gate);
		victim_child(check_shared, check_shared);
	}
	victim_gate_wait(gate);
	own_stat = open_of(getpid(), "task", O_RDONLY | O_DIRECTORY);
	close(own_stat);
	own_stat = open_of(getpid(), "stat", O_RDONLY);
	check(lseek(own_stat, SKIPPED, SEEK_SET) == SKIPPED, "lseek: %m");
	child_status = open_of(child, "status", O_RDONLY);
	own_directory = open_of(child, "", O_RDONLY | O_DIRECTORY);
}

static void verify(void)
{
	char name[32] = "";
	check_pid(own_stat, "", getpid());
	check(lseek(own_stat, 0, SEEK_CUR) == SKIPPED, "the position is %ld", (long)lseek(own_stat, 0, SEEK_CUR));
	check_pid(child_status, "\nPid:", child);
	check_pid(shared, "\nPid:", getpid());
	int below = must(openat(own_directory, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	snprintf(name, sizeof(name), "%d", child);
	must(faccessat(below, name, F_OK, 0));
	close(below);
}

static void sabotage(void)
{
	must(dup2(own_stat, child_status));
}

static void finish(void)
{
	victim_end_child(child);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
