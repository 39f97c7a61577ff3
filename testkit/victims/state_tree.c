/* Proves that a process tree is restored: children and grandchildren with their pids, parents and
 * own memory. Zombies of the root and of a child (exited or killed) are restored with their exit
 * status. */
#include "victim.h"

#define EXIT_STATUS 42
#define ROOTS_CHILDREN 3
#define GRANDCHILDREN 2
#define MEMORY_BYTES 20000

static pid_t children[ROOTS_CHILDREN], grandchildren[GRANDCHILDREN];
static pid_t exited, killed;
static pid_t own_pid;
static unsigned char memory[MEMORY_BYTES];
static uint64_t memory_seed;
static bool has_children;

static void become(uint64_t seed)
{
	own_pid = getpid();
	memory_seed = seed;
	victim_fill(memory, sizeof(memory), seed);
}

static void work(void)
{
	check(getpid() == own_pid, "pid is %d, was %d", getpid(), own_pid);
	check(victim_differs(memory, sizeof(memory), memory_seed) < 0, "memory of pid %d is wrong", own_pid);
	memory_seed += 1000;
	victim_fill(memory, sizeof(memory), memory_seed);
}

/* Creates a zombie: a dead child that is not reaped. */
static pid_t make_zombie(bool by_signal)
{
	siginfo_t info;
	pid_t zombie = victim_fork();
	if (zombie == 0) {
		if (!by_signal)
			_exit(EXIT_STATUS);
		for (;;)
			pause();
	}
	if (by_signal)
		must(kill(zombie, SIGKILL));
	must(waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT));
	return zombie;
}

static void check_zombie(pid_t zombie, int code, int status, int flags)
{
	siginfo_t info = { 0 };
	must(waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOHANG | flags));
	check(info.si_pid == zombie && info.si_code == code && info.si_status == status,
	      "zombie %d: pid %d, code %d, status %d", zombie, info.si_pid, info.si_code, info.si_status);
}

static void end_child(void)
{
	work();
	if (has_children) {
		check_zombie(exited, CLD_EXITED, EXIT_STATUS, 0);
		for (int i = 0; i < GRANDCHILDREN; i++)
			victim_end_child(grandchildren[i]);
	}
	must_fail_with(waitpid(-1, NULL, WNOHANG), ECHILD);
}

static void start_grandchildren(void)
{
	for (int i = 0; i < GRANDCHILDREN; i++) {
		struct victim_gate gate = victim_gate_make();
		grandchildren[i] = victim_fork();
		if (grandchildren[i] == 0) {
			has_children = false;
			become(200 + (uint64_t)i);
			victim_gate_open(gate);
			victim_child(work, end_child);
		}
		victim_gate_wait(gate);
	}
	exited = make_zombie(false);
	has_children = true;
}

static void setup(void)
{
	become(1);
	for (int i = 0; i < ROOTS_CHILDREN; i++) {
		struct victim_gate gate = victim_gate_make();
		children[i] = victim_fork();
		if (children[i] == 0) {
			become(100 + (uint64_t)i);
			if (i == 1)
				start_grandchildren();
			victim_gate_open(gate);
			victim_child(work, end_child);
		}
		victim_gate_wait(gate);
	}
	exited = make_zombie(false);
	killed = make_zombie(true);
}

static void verify(void)
{
	work();
	check_zombie(exited, CLD_EXITED, EXIT_STATUS, WNOWAIT);
	check_zombie(killed, CLD_KILLED, SIGKILL, WNOWAIT);
	for (int i = 0; i < ROOTS_CHILDREN; i++)
		must(kill(children[i], 0));
}

static void sabotage(void)
{
	must(waitpid(exited, NULL, 0));
}

static void finish(void)
{
	check_zombie(exited, CLD_EXITED, EXIT_STATUS, 0);
	check_zombie(killed, CLD_KILLED, SIGKILL, 0);
	for (int i = 0; i < ROOTS_CHILDREN; i++)
		victim_end_child(children[i]);
	must_fail_with(waitpid(-1, NULL, WNOHANG), ECHILD);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
