/* Proves that a stopped process is restored as stopped, and continues after SIGCONT. For one
 * process, the parent has already collected the stop with waitpid(2). For the other process, it has
 * not. */
#include "victim.h"

#include <sys/uio.h>

static pid_t seen, unseen;
static unsigned long seen_rounds, unseen_rounds;

static pid_t start(void)
{
	struct victim_gate gate = victim_gate_make();
	pid_t child = victim_fork();
	if (child == 0) {
		/* A separate group that is not orphaned: SIGTSTP has no effect in an orphaned
		 * group. */
		must(setpgid(0, 0));
		victim_gate_open(gate);
		victim_child(NULL, NULL);
	}
	victim_gate_wait(gate);
	return child;
}

static char state_of(pid_t pid)
{
	char path[64], text[512] = "";
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	int fd = must(open(path, O_RDONLY | O_CLOEXEC));
	must(read(fd, text, sizeof(text) - 1));
	close(fd);
	const char *name_end = strrchr(text, ')');
	return name_end != NULL ? name_end[2] : '?';
}

/* Returns how many rounds the child's loop has completed. The child has the same program, so its
 * counter has the same address. */
static unsigned long rounds_of(pid_t pid)
{
	unsigned long rounds = 0;
	struct iovec here = { &rounds, sizeof(rounds) }, there = { (void *)&victim_ticks, sizeof(rounds) };
	check(process_vm_readv(pid, &here, 1, &there, 1, 0) == sizeof(rounds), "cannot read pid %d: %m", pid);
	return rounds;
}

static void setup(void)
{
	siginfo_t info = { 0 };
	int status = 0;
	seen = start();
	unseen = start();
	must(kill(seen, SIGSTOP));
	check(waitpid(seen, &status, WUNTRACED) == seen && WIFSTOPPED(status), "no stop: status 0x%x", status);
	must(kill(unseen, SIGTSTP));
	must(waitid(P_PID, (id_t)unseen, &info, WSTOPPED | WNOWAIT));
	seen_rounds = rounds_of(seen);
	unseen_rounds = rounds_of(unseen);
}

static void work(void)
{
	check(rounds_of(seen) == seen_rounds && rounds_of(unseen) == unseen_rounds, "a stopped process has run");
}

/* The state can briefly be another one, while a checkpoint detaches from the child. */
static void verify(void)
{
	siginfo_t info = { 0 };
	work();
	victim_await(state_of(seen) == 'T' && state_of(unseen) == 'T', "states are %c and %c", state_of(seen),
		     state_of(unseen));
	must(waitid(P_PID, (id_t)unseen, &info, WSTOPPED | WNOWAIT | WNOHANG));
	check(info.si_pid == unseen && info.si_code == CLD_STOPPED && info.si_status == SIGTSTP,
	      "the stop to collect: pid %d, code %d, signal %d", info.si_pid, info.si_code, info.si_status);
}

static void sabotage(void)
{
	must(kill(unseen, SIGCONT));
	victim_await(rounds_of(unseen) != unseen_rounds, "the child does not go on");
}

static void finish_one(pid_t child)
{
	siginfo_t info = { 0 };
	must(kill(child, SIGCONT));
	must(waitid(P_PID, (id_t)child, &info, WCONTINUED));
	check(info.si_pid == child && info.si_code == CLD_CONTINUED, "pid %d: code %d", info.si_pid, info.si_code);
	victim_end_child(child);
}

static void finish(void)
{
	finish_one(seen);
	finish_one(unseen);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
