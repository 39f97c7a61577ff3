/* Proves that the settings of prctl are restored: name, dumpable, no_new_privs, child subreaper,
 * keep-caps, disabled huge pages, memory merging and speculation control. The death signal of a
 * child is restored. So are the policies for machine checks and for the time stamp counter, which
 * each thread has for itself. */
#include "victim.h"
#include <stdatomic.h>

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68
#endif

static pid_t child;
static int death_signal = SIGUSR2;

/* Another thread reads its own policies repeatedly, and stores them here. */
static pthread_t other;
static atomic_int others_counter, others_check, others_rounds;
static atomic_bool others_end;

/* Whether this kernel and processor support memory merging and speculation control. */
static bool merges;
static int bypass = -1;

struct setting {
	const char *name;
	int get, set;
	unsigned long value;
	bool by_pointer; /* prctl stores the value through a pointer */
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

/* Must not read a clock: the vDSO would read the forbidden time stamp counter, and SIGSEGV would
 * end the thread. */
static void *look_again_and_again(void *unused)
{
	must(prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
	must(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_LATE, 0, 0));
	while (!others_end) {
		int now = 0;
		must(prctl(PR_GET_TSC, &now));
		others_counter = now;
		others_check = prctl(PR_MCE_KILL_GET, 0, 0, 0, 0);
		others_rounds++;
		usleep(1000);
	}
	return unused;
}

static void check_other(void)
{
	int since = others_rounds;
	while (others_rounds < since + 2)
		usleep(1000);
	check(others_counter == PR_TSC_SIGSEGV, "the other thread's counter policy is %d", others_counter);
	check(others_check == PR_MCE_KILL_LATE, "the other thread's machine check policy is %d", others_check);
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	merges = prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) == 0;
	if (prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0) == 0)
		bypass = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0);
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
	other = victim_thread(look_again_and_again, NULL);
	check_other();
}

static void verify(void)
{
	char name[16] = "";
	must(prctl(PR_GET_NAME, name));
	check(strcmp(name, "vic tim)\xc3\xa9 1 S") == 0, "name is [%s]", name);
	check(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0) == PR_MCE_KILL_EARLY, "the machine check policy changed");
	if (merges)
		check(prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) == 1, "memory is merged no more");
	if (bypass >= 0)
		check(prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0) == bypass, "speculation is controlled otherwise");
	check_other();
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
	others_end = true;
	must_zero(pthread_join(other, NULL));
	victim_end_child(child);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
