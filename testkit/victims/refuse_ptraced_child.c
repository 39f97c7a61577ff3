/* Traces a child with ptrace. */
#include "victim.h"

#include <sys/ptrace.h>

static pid_t child;

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	child = victim_fork();
	if (child == 0) {
		victim_gate_open(gate);
		victim_child(NULL, NULL);
	}
	victim_gate_wait(gate);
	must(ptrace(PTRACE_SEIZE, child, NULL, NULL));
}

static void verify(void)
{
	char path[64], text[4096] = "";
	snprintf(path, sizeof(path), "/proc/%d/status", child);
	int status = must(open(path, O_RDONLY | O_CLOEXEC));
	must(read(status, text, sizeof(text) - 1));
	close(status);
	const char *tracer = strstr(text, "TracerPid:");
	check(tracer != NULL && strtol(tracer + 10, NULL, 10) == getpid(), "the child is not traced any more");
}

static void sabotage(void)
{
	int status;
	must(ptrace(PTRACE_INTERRUPT, child, NULL, NULL));
	must(waitpid(child, &status, __WALL));
	must(ptrace(PTRACE_DETACH, child, NULL, NULL));
}

static void finish(void)
{
	must(kill(child, SIGKILL));
	must(waitpid(child, NULL, __WALL));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
