/* Proves that sessions and process groups of a tree are restored. A child has its own session,
 * which contains a group with two members. In the session of the parent, there is a group whose
 * leader is a sibling of its member. */
#include "victim.h"

#define MEMBERS 5

struct member {
	pid_t pid, parent, group, session;
};

/* The ids of each member when the tree is complete, written before "ready". Each process has its
 * own copy. */
static struct member own;
static pid_t children[MEMBERS];
static int child_count;

static struct member look(void)
{
	return (struct member){ getpid(), getppid(), getpgrp(), getsid(0) };
}

static void check_member(void)
{
	struct member now = look();
	check(now.pid == own.pid && now.parent == own.parent, "pid %d, parent %d; were %d, %d", now.pid, now.parent,
	      own.pid, own.parent);
	check(now.group == own.group, "pid %d: group is %d, was %d", now.pid, now.group, own.group);
	check(now.session == own.session, "pid %d: session is %d, was %d", now.pid, now.session, own.session);
}

static void end_children(void)
{
	check_member();
	for (int i = 0; i < child_count; i++)
		victim_end_child(children[i]);
}

/* Starts a child in group `group` (0: its own group) or in its own session. `inside` starts the
 * child's children. */
static pid_t start(bool session, pid_t group, void (*inside)(void))
{
	struct victim_gate gate = victim_gate_make();
	pid_t child = victim_fork();
	if (child == 0) {
		child_count = 0;
		if (session)
			must(setsid());
		else
			must(setpgid(0, group));
		if (inside != NULL)
			inside();
		own = look();
		victim_gate_open(gate);
		victim_child(check_member, end_children);
	}
	victim_gate_wait(gate);
	children[child_count++] = child;
	return child;
}

static void fill_session(void)
{
	pid_t leader = start(false, 0, NULL);
	start(false, leader, NULL);
}

static void setup(void)
{
	pid_t leader = start(false, 0, NULL);
	start(false, leader, NULL);
	start(true, 0, fill_session);
	start(false, getpgrp(), NULL);
	own = look();
}

/* Checks that the parent sees the same ids as the children. */
static void verify(void)
{
	check_member();
	check(getpgid(children[0]) == children[0] && getpgid(children[1]) == children[0], "the first group changed");
	check(getsid(children[0]) == getsid(0) && getsid(children[1]) == getsid(0), "the first group left the session");
	check(getsid(children[2]) == children[2] && getpgid(children[2]) == children[2], "the second session changed");
	check(getpgid(children[3]) == getpgrp(), "the own group changed");
}

static void sabotage(void)
{
	must(setpgid(children[1], children[1]));
}

static void finish(void)
{
	end_children();
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
