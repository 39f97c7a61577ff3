/* Proves that a session keeps its controlling terminal if the terminal belongs to a terminal
 * emulator outside the tree. One session has no descriptor of the terminal. The other session has
 * only a descriptor of /dev/tty. */
#include "victim.h"

#include <sys/ioctl.h>

enum { WITHOUT_DESCRIPTOR, WITH_FRONT, SESSIONS };

static pid_t emulators[SESSIONS], leaders[SESSIONS];
static int terminal, front = -1;

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
	check(front < 0 || tcgetpgrp(front) == getpgrp(), "foreground group of fd %d is not ours: %m", front);
}

/* Acts as the terminal emulator: has both ends open, and is a child of init. Its environment is
 * empty, so that the harness does not count it as a process of the victim. */
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

static void start_session(int number)
{
	char text[128] = "", path[64];
	int ready[2];
	struct victim_gate gate = victim_gate_make();
	must(pipe2(ready, O_CLOEXEC));
	pid_t between = must(fork());
	if (between == 0) {
		if (must(fork()) == 0)
			emulate(ready[1]);
		_exit(0);
	}
	must(waitpid(between, NULL, 0));
	check(read(ready[0], text, sizeof(text) - 1) > 0 && sscanf(text, "%d %63s", &emulators[number], path) == 2,
	      "no terminal");
	close(ready[0]);
	close(ready[1]);
	leaders[number] = victim_fork();
	if (leaders[number] == 0) {
		must(setsid());
		close(must(open(path, O_RDWR | O_CLOEXEC)));
		terminal = tty_of_own();
		check(terminal != 0, "no controlling terminal");
		if (number == WITH_FRONT)
			front = must(open("/dev/tty", O_RDWR | O_CLOEXEC));
		victim_gate_open(gate);
		victim_child(check_terminal, check_terminal);
	}
	victim_gate_wait(gate);
}

static void setup(void)
{
	/* A guardian would adopt the emulator, and kill it together with a dead tree. */
	if (getenv("UNDYING_SOCKET") != NULL)
		victim_unsupported("a process beside a guarded tree");
	for (int number = 0; number < SESSIONS; number++)
		start_session(number);
}

static void verify(void)
{
	for (int number = 0; number < SESSIONS; number++) {
		must(kill(emulators[number], 0));
		check(getsid(leaders[number]) == leaders[number], "the session is %d", getsid(leaders[number]));
	}
}

static void sabotage(void)
{
	must(kill(leaders[WITH_FRONT], SIGKILL));
	must(waitpid(leaders[WITH_FRONT], NULL, 0));
}

static void finish(void)
{
	for (int number = 0; number < SESSIONS; number++) {
		victim_end_child(leaders[number]);
		must(kill(emulators[number], SIGKILL));
	}
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
