/* Proves that a process group and a session are restored if their leaders are dead and reaped.
 * Their ids do not belong to a process any more, but the group and the session still have living
 * members. */
#include "victim.h"

static pid_t in_group, in_session, dead_group, dead_session;
static struct {
	pid_t group, session;
} own;

static void check_own(void)
{
	check(getpgrp() == own.group, "group is %d, was %d", getpgrp(), own.group);
	check(getsid(0) == own.session, "session is %d, was %d", getsid(0), own.session);
}

/* Starts a member, which outlives its leader. */
static pid_t start_member(pid_t group)
{
	struct victim_gate gate = victim_gate_make();
	pid_t child = victim_fork();
	if (child == 0) {
		if (group != 0)
			must(setpgid(0, group));
		own.group = getpgrp();
		own.session = getsid(0);
		victim_gate_open(gate);
		victim_child(check_own, check_own);
	}
	victim_gate_wait(gate);
	return child;
}

/* Creates a group with a dead leader. The leader was a child of this process. */
static void setup_group(void)
{
	dead_group = victim_fork();
	while (dead_group == 0)
		pause();
	must(setpgid(dead_group, dead_group));
	in_group = start_member(dead_group);
	must(kill(dead_group, SIGKILL));
	must(waitpid(dead_group, NULL, 0));
}

/* Creates a session with a dead leader. The leader forks the member and dies. This process adopts
 * the member, because it is a subreaper. */
static void setup_session(void)
{
	int number[2];
	struct victim_gate gate = victim_gate_make();
	must(pipe2(number, O_CLOEXEC));
	dead_session = victim_fork();
	if (dead_session == 0) {
		pid_t leader = must(setsid()), member = must(fork());
		if (member == 0) {
			pid_t adoptive = victim_parent;
			own.group = getpgrp();
			own.session = getsid(0);
			victim_await(getppid() != leader, "the leader does not die");
			check(getppid() == adoptive, "adopted by %d", getppid());
			victim_gate_open(gate);
			close(number[0]);
			close(number[1]);
			victim_child(check_own, check_own);
		}
		check(write(number[1], &member, sizeof(member)) == sizeof(member), "write: %m");
		_exit(0);
	}
	check(read(number[0], &in_session, sizeof(in_session)) == sizeof(in_session), "read: %m");
	close(number[0]);
	close(number[1]);
	must(waitpid(dead_session, NULL, 0));
	victim_gate_wait(gate);
}

static void setup(void)
{
	must(prctl(PR_SET_CHILD_SUBREAPER, 1));
	setup_group();
	setup_session();
}

static void verify(void)
{
	check(getpgid(in_group) == dead_group && getsid(in_group) == getsid(0), "group of a dead leader: %d",
	      getpgid(in_group));
	check(getsid(in_session) == dead_session && getpgid(in_session) == dead_session, "session of a dead leader: %d",
	      getsid(in_session));
	must_fail_with(kill(dead_group, 0), ESRCH);
	must_fail_with(kill(dead_session, 0), ESRCH);
	must(kill(-dead_group, 0));
	must(kill(-dead_session, 0));
}

static void sabotage(void)
{
	must(setpgid(in_group, in_group));
}

static void finish(void)
{
	victim_end_child(in_group);
	victim_end_child(in_session);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
