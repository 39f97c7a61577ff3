/* Has a child in a process group whose leader is outside the tree. */
#include "victim.h"

static pid_t foreign, member;

/* Starts a process that init adopts. It exits when the root has exited. */
static pid_t start_foreign(void)
{
	int number[2];
	pid_t root = getpid(), between, pid = 0;
	must(pipe2(number, O_CLOEXEC));
	between = must(fork());
	if (between == 0) {
		pid = must(fork());
		if (pid == 0) {
			must(setpgid(0, 0));
			pid = getpid();
			check(write(number[1], &pid, sizeof(pid)) == sizeof(pid), "write: %m");
			close(number[0]);
			close(number[1]);
			while (kill(root, 0) == 0)
				usleep(10000);
			_exit(0);
		}
		_exit(0);
	}
	must(waitpid(between, NULL, 0));
	check(read(number[0], &pid, sizeof(pid)) == sizeof(pid), "read: %m");
	close(number[0]);
	close(number[1]);
	return pid;
}

static void setup(void)
{
	struct victim_gate gate;
	foreign = start_foreign();
	gate = victim_gate_make();
	member = victim_fork();
	if (member == 0) {
		must(setpgid(0, foreign));
		victim_gate_open(gate);
		for (;;)
			pause();
	}
	victim_gate_wait(gate);
}

static void verify(void)
{
	check(getpgid(member) == foreign, "the group is %d, was %d", getpgid(member), foreign);
}

static void sabotage(void)
{
	must(setpgid(member, member));
}

static void finish(void)
{
	must(kill(member, SIGKILL));
	must(waitpid(member, NULL, 0));
	must(kill(foreign, SIGKILL));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
