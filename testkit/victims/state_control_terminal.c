/* Proves that a session keeps its controlling terminal although no process of the tree
 * has it open: it belongs to a terminal emulator elsewhere. */
#include "victim.h"

#include <sys/ioctl.h>

static pid_t emulator, leader;
static int terminal;

static int tty_of_own(void)
{
	char text[2048];
	FILE *stat = fopen("/proc/self/stat", "re");
	check(stat != NULL && fgets(text, sizeof(text), stat) != NULL, "/proc/self/stat: %m");
	fclose(stat);
	char *field = strrchr(text, ')') + 1;
	for (int number = 3; number < 7; number++)
		field += 1 + strcspn(field + 1, " ");
	return atoi(field + 1);
}

static void check_terminal(void)
{
	check(tty_of_own() == terminal, "the terminal is %#x, was %#x", tty_of_own(), terminal);
	int opened = must(open("/dev/tty", O_RDWR | O_CLOEXEC));
	check(tcgetpgrp(opened) == getpgrp(), "foreground group is %d", tcgetpgrp(opened));
	close(opened);
}

/* Holds both ends, belongs to init, and carries no mark of the victim. */
static void emulate(int ready)
{
	char path[64], *const arguments[] = { "sleep", "60", NULL }, *const nothing[] = { NULL };
	must(setsid());
	int master = must(posix_openpt(O_RDWR | O_NOCTTY));
	must(grantpt(master));
	must(unlockpt(master));
	check(ptsname_r(master, path, sizeof(path)) == 0, "no name");
	must(open(path, O_RDWR | O_NOCTTY));
	dprintf(ready, "%d %s\n", getpid(), path);
	execve("/bin/sleep", arguments, nothing);
	_exit(1);
}

static void setup(void)
{
	char text[128] = "", path[64];
	int ready[2];
	struct victim_gate gate = victim_gate_make();
	/* A guardian adopts the emulator and ends it with the rest of a dead tree. */
	if (getenv("UNDYING_SOCKET") != NULL)
		victim_unsupported("a process beside a guarded tree");
	must(pipe2(ready, O_CLOEXEC));
	pid_t between = must(fork());
	if (between == 0) {
		if (must(fork()) == 0)
			emulate(ready[1]);
		_exit(0);
	}
	must(waitpid(between, NULL, 0));
	check(read(ready[0], text, sizeof(text) - 1) > 0 && sscanf(text, "%d %63s", &emulator, path) == 2, "no terminal");
	close(ready[0]);
	close(ready[1]);
	leader = victim_fork();
	if (leader == 0) {
		must(setsid());
		close(must(open(path, O_RDWR | O_CLOEXEC)));
		terminal = tty_of_own();
		check(terminal != 0, "no controlling terminal");
		victim_gate_open(gate);
		victim_child(check_terminal, check_terminal);
	}
	victim_gate_wait(gate);
}

static void verify(void)
{
	must(kill(emulator, 0));
	check(getsid(leader) == leader, "the session is %d", getsid(leader));
}

static void sabotage(void)
{
	must(kill(leader, SIGKILL));
	must(waitpid(leader, NULL, 0));
}

static void finish(void)
{
	victim_end_child(leader);
	must(kill(emulator, SIGKILL));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
