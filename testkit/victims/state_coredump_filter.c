/* Proves that the filter for core dumps (coredump_filter) is restored, also for a child with
 * another filter. */
#include "victim.h"

static unsigned long own_filter;

static unsigned long filter_of(pid_t pid)
{
	char path[64];
	unsigned long filter = 0;
	snprintf(path, sizeof(path), "/proc/%d/coredump_filter", pid);
	FILE *file = fopen(path, "re");
	if (file == NULL && errno == ENOENT)
		victim_unsupported("coredump_filter");
	check(file != NULL && fscanf(file, "%lx", &filter) == 1, "%s: %m", path);
	fclose(file);
	return filter;
}

static void set_filter(unsigned long filter)
{
	FILE *file = fopen("/proc/self/coredump_filter", "we");
	check(file != NULL && fprintf(file, "%#lx", filter) > 0 && fclose(file) == 0, "coredump_filter: %m");
}

static pid_t child;

static void verify_own(void)
{
	check(filter_of(getpid()) == own_filter, "the filter is %#lx, was %#lx", filter_of(getpid()), own_filter);
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	own_filter = filter_of(getpid()) ^ 0x7;
	child = victim_fork();
	if (child == 0) {
		own_filter = 0x41;
		set_filter(own_filter);
		victim_gate_open(gate);
		victim_child(NULL, verify_own);
	}
	victim_gate_wait(gate);
	set_filter(own_filter);
}

static void verify(void)
{
	verify_own();
	check(filter_of(child) == 0x41, "the filter of the child is %#lx", filter_of(child));
}

static void sabotage(void)
{
	set_filter(own_filter ^ 1);
}

static void finish(void)
{
	victim_end_child(child);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
