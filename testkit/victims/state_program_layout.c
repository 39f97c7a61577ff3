/* Proves that a program that continuously moves the bounds of its arguments (PR_SET_MM_MAP, used
 * for titles in ps) is restored with the last bounds. Each move causes a new inspection of the
 * process. This inspection must not mistake the tracker's own userfaultfd registration for a
 * registration of the program. */
#include "victim.h"

#include <linux/prctl.h>

#define FIELDS 51

static unsigned long first, current;
static struct prctl_mm_map map;

/* Reads the fields of /proc/self/stat, indexed by their numbers in proc_pid_stat(5). */
static void read_stat(unsigned long fields[FIELDS + 1])
{
	char text[2048];
	FILE *stat = fopen("/proc/self/stat", "re");
	check(stat != NULL && fgets(text, sizeof(text), stat) != NULL, "/proc/self/stat: %m");
	fclose(stat);
	char *field = strrchr(text, ')') + 1;
	for (int number = 3; number <= FIELDS; number++) {
		check(*field == ' ', "/proc/self/stat is short");
		fields[number] = strtoul(++field, NULL, 10);
		field += strcspn(field, " ");
	}
}

static unsigned long arg_start(void)
{
	unsigned long fields[FIELDS + 1];
	read_stat(fields);
	return fields[48];
}

static int move_arguments(unsigned long start)
{
	map.arg_start = start;
	map.brk = (uintptr_t)sbrk(0);
	return prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof(map), 0);
}

static void setup(void)
{
	unsigned long fields[FIELDS + 1];
	read_stat(fields);
	map = (struct prctl_mm_map){
		.start_code = fields[26],
		.end_code = fields[27],
		.start_stack = fields[28],
		.start_data = fields[45],
		.end_data = fields[46],
		.start_brk = fields[47],
		.arg_end = fields[49],
		.env_start = fields[50],
		.env_end = fields[51],
		.exe_fd = (unsigned)-1,
	};
	first = current = fields[48];
	if (move_arguments(first) < 0)
		victim_unsupported("PR_SET_MM_MAP: %m");
}

static void work(void)
{
	unsigned long next = first + (current == first);
	must(move_arguments(next));
	current = next;
}

static void verify(void)
{
	check(arg_start() == current, "the arguments start at %#lx, not at %#lx", arg_start(), current);
}

static void sabotage(void)
{
	must(move_arguments(first + 2));
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
