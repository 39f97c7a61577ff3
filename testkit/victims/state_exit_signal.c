/* Proves that children of clone(2) keep their exit signal, if it is 0 or a signal other than
 * SIGCHLD. The parent must still use __WCLONE to wait for them. */
#include "victim.h"

static pid_t silent, loud;
static volatile sig_atomic_t signals;

static void on_signal(int signal)
{
	(void)signal;
	signals++;
}

static pid_t start(int signal)
{
	pid_t parent = getpid();
	pid_t child = must((pid_t)syscall(SYS_clone, signal, NULL, NULL, NULL, 0));
	if (child == 0) {
		while (getppid() == parent && !victim_over())
			victim_nap(VICTIM_NAP_US);
		_exit(0);
	}
	return child;
}

static int exit_signal(pid_t pid)
{
	char path[64], text[2048];
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *stat = fopen(path, "re");
	check(stat != NULL && fgets(text, sizeof(text), stat) != NULL, "%s: %m", path);
	fclose(stat);
	char *field = strrchr(text, ')') + 1;
	for (int number = 3; number < 38; number++)
		field += 1 + strcspn(field + 1, " ");
	return atoi(field + 1);
}

static void setup(void)
{
	signal(SIGUSR2, on_signal);
	silent = start(0);
	loud = start(SIGUSR2);
}

static void verify(void)
{
	check(exit_signal(silent) == 0, "exit signal is %d, was 0", exit_signal(silent));
	check(exit_signal(loud) == SIGUSR2, "exit signal is %d, was SIGUSR2", exit_signal(loud));
	must_fail_with(waitpid(-1, NULL, WNOHANG), ECHILD);
	check(signals == 0, "a child is gone");
}

static void sabotage(void)
{
	signals = 1;
}

static void finish(void)
{
	must(kill(silent, SIGKILL));
	check(waitpid(silent, NULL, __WCLONE) == silent, "waitpid: %m");
	check(signals == 0, "the silent child sent a signal");
	must(kill(loud, SIGKILL));
	check(waitpid(loud, NULL, __WCLONE) == loud, "waitpid: %m");
	check(signals == 1, "the loud child sent %d signals", (int)signals);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
