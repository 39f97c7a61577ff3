/* Proves that the out-of-memory score adjustment is restored. */
#include "victim.h"

#define ADJUSTMENT 345

static const char path[] = "/proc/self/oom_score_adj";

static void set(int value)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%d", value);
	int fd = must(open(path, O_WRONLY | O_CLOEXEC));
	check(write(fd, text, (size_t)length) == length, "cannot set %s to %d: %m", path, value);
	close(fd);
}

static void setup(void)
{
	set(ADJUSTMENT);
}

static void verify(void)
{
	char text[16] = "";
	int fd = must(open(path, O_RDONLY | O_CLOEXEC));
	must(read(fd, text, sizeof(text) - 1));
	close(fd);
	check(atoi(text) == ADJUSTMENT, "adjustment is %d, was %d", atoi(text), ADJUSTMENT);
}

static void sabotage(void)
{
	set(ADJUSTMENT + 100);
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
