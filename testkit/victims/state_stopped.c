/* Proves that a stopped process comes back stopped and goes on when told to: one
 * whose parent has seen the stop, and one whose stop is still to be collected. */
#include "victim.h"

static pid_t seen, unseen;

static pid_t start(void)
{
	struct victim_gate gate = victim_gate_make();
	pid_t child = victim_fork();
	if (child == 0) {
		/* A group of its own, which is not orphaned: only there does SIGTSTP stop. */
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
}

/* Small t: whoever takes a checkpoint has not let go of the child yet. */
static bool is_stopped(pid_t pid)
{
	char state = state_of(pid);
	return state == 'T' || state == 't';
}

static void work(void)
{
	check(is_stopped(seen) && is_stopped(unseen), "states are %c and %c", state_of(seen), state_of(unseen));
}

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
