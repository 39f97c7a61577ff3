/* Has a file without a name, with more data than an image holds of such a file. The program does not map the file. */
#include "victim.h"

#define MIB (1 << 20)
#define LENGTH (65L * MIB)

static int held;
static char buffer[MIB];

static void setup(void)
{
	held = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (held < 0)
		victim_unsupported("a file without a name: %m");
	memset(buffer, 'x', sizeof(buffer));
	for (long at = 0; at < LENGTH; at += MIB)
		must(pwrite(held, buffer, sizeof(buffer), at));
}

static void verify(void)
{
	char last = 0;

	check(lseek(held, 0, SEEK_END) == LENGTH, "the length changed");
	check(pread(held, &last, 1, LENGTH - 1) == 1 && last == 'x', "the content changed");
}

static void sabotage(void)
{
	must(ftruncate(held, 0));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
