/* Proves that what prctl sets comes back: name, dumpable, no_new_privs, child
 * subreaper, keep-caps, the machine check policy, transparent huge pages
 * disabled, and the death signal of a child, which also works. */
#include "victim.h"

static pid_t child;
static int death_signal = SIGUSR2;

struct setting {
	const char *name;
	int get, set;
	unsigned long value;
	bool by_pointer; /* the value comes back through a pointer */
};

static const struct setting settings[] = {
	{ "no_new_privs", PR_GET_NO_NEW_PRIVS, PR_SET_NO_NEW_PRIVS, 1, false },
	{ "child subreaper", PR_GET_CHILD_SUBREAPER, PR_SET_CHILD_SUBREAPER, 1, true },
	{ "keep-caps", PR_GET_KEEPCAPS, PR_SET_KEEPCAPS, 1, false },
	{ "transparent huge pages disabled", PR_GET_THP_DISABLE, PR_SET_THP_DISABLE, 1, false },
	{ "dumpable", PR_GET_DUMPABLE, PR_SET_DUMPABLE, 0, false },
};
#define SETTINGS (sizeof(settings) / sizeof(settings[0]))

static void check_death_signal(void)
{
	int now = 0;
	must(prctl(PR_GET_PDEATHSIG, &now));
	check(now == death_signal, "death signal is %d, was %d", now, death_signal);
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	must(prctl(PR_SET_NAME, "vic tim)\xc3\xa9 1 S"));
	must(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0));
	child = victim_fork();
	if (child == 0) {
		must(prctl(PR_SET_PDEATHSIG, death_signal));
		victim_gate_open(gate);
		victim_child(check_death_signal, check_death_signal);
	}
	victim_gate_wait(gate);
	for (size_t i = 0; i < SETTINGS; i++)
		check(prctl(settings[i].set, settings[i].value, 0, 0, 0) == 0, "%s: %m", settings[i].name);
}

static void verify(void)
{
	char name[16] = "";
	must(prctl(PR_GET_NAME, name));
	check(strcmp(name, "vic tim)\xc3\xa9 1 S") == 0, "name is [%s]", name);
	check(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0) == PR_MCE_KILL_EARLY, "the machine check policy changed");
	for (size_t i = 0; i < SETTINGS; i++) {
		int pointed = 0;
		int now = settings[i].by_pointer ? prctl(settings[i].get, &pointed, 0, 0, 0) : prctl(settings[i].get, 0, 0, 0, 0);
		check(now >= 0, "%s: %m", settings[i].name);
		now = settings[i].by_pointer ? pointed : now;
		check((unsigned long)now == settings[i].value, "%s is %d, was %lu", settings[i].name, now, settings[i].value);
	}
}

static void sabotage(void)
{
	must(prctl(PR_SET_KEEPCAPS, 0));
}

static void finish(void)
{
	victim_end_child(child);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
