/* Proves that an orphan is restored into its session. Its parent was in this session and has ended.
 * A process outside the session has adopted it. */
#include "victim.h"

static pid_t leader, orphan;
static pid_t own_session, own_group, own_parent;

static void check_own(void)
{
	check(getsid(0) == own_session, "session is %d, was %d", getsid(0), own_session);
	check(getpgrp() == own_group, "group is %d, was %d", getpgrp(), own_group);
	check(getppid() == own_parent, "parent is %d, was %d", getppid(), own_parent);
}

static void live(struct victim_gate gate)
{
	own_session = getsid(0);
	own_group = getpgrp();
	own_parent = getppid();
	victim_gate_open(gate);
	victim_child(check_own, check_own);
}

static void setup(void)
{
	int number[2];
	struct victim_gate lead = victim_gate_make(), adopted = victim_gate_make();
	must(prctl(PR_SET_CHILD_SUBREAPER, 1));
	must(pipe2(number, O_CLOEXEC));
	leader = victim_fork();
	if (leader == 0) {
		must(setsid());
		pid_t between = must(fork());
		if (between == 0) {
			pid_t child = must(fork());
			if (child != 0)
				_exit(0);
			child = getpid();
			victim_await(getppid() == victim_parent, "nobody adopts");
			check(write(number[1], &child, sizeof(child)) == sizeof(child), "write: %m");
			close(number[0]);
			close(number[1]);
			close(lead.ends[0]);
			close(lead.ends[1]);
			live(adopted);
		}
		close(number[0]);
		close(number[1]);
		close(adopted.ends[0]);
		close(adopted.ends[1]);
		must(waitpid(between, NULL, 0));
		live(lead);
	}
	check(read(number[0], &orphan, sizeof(orphan)) == sizeof(orphan), "read: %m");
	close(number[0]);
	close(number[1]);
	victim_gate_wait(adopted);
	victim_gate_wait(lead);
}

static void verify(void)
{
	check(getsid(leader) == leader, "session of the leader is %d", getsid(leader));
	check(getsid(orphan) == leader && getpgid(orphan) == leader, "session of the orphan is %d, its group %d",
	      getsid(orphan), getpgid(orphan));
}

static void sabotage(void)
{
	must(kill(orphan, SIGKILL));
	must(waitpid(orphan, NULL, 0));
}

static void finish(void)
{
	victim_end_child(orphan);
	victim_end_child(leader);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
