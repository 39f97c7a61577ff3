/* Allocates dataspaces (separate memory mappings), and rewrites a share of their pages at each SIGUSR1. The subject of
 * continuous_sweep.py.
 *
 * Options: kib= size of each dataspace; count= number of dataspaces; percent= share of the pages of each dataspace that
 * SIGUSR1 rewrites. The rewritten pages are evenly spread, and at least one page of each dataspace is rewritten. The
 * program writes `ready`, and then a line `written` after each rewriting. */
#include "subject.h"

static volatile sig_atomic_t is_asked;

static void ask(int signal_number)
{
	(void)signal_number;
	is_asked = 1;
}

static unsigned char *piece(size_t bytes, int is_odd)
{
	/* The kernel must not merge neighbouring mappings. Therefore, every second mapping gets the flag MADV_DONTDUMP. */
	unsigned char *at = memory(bytes);
	if (is_odd && madvise(at, bytes, MADV_DONTDUMP))
		fail("a piece");
	return at;
}

int main(int argc, char **argv)
{
	size_t count = number(argc, argv, "count", 1), bytes = number(argc, argv, "kib", 4) << 10;
	size_t pages = bytes / PAGE, percent = number(argc, argv, "percent", 100), turn = 0;
	size_t rewritten = pages * percent / 100 ? pages * percent / 100 : 1;
	unsigned char **pieces = calloc(count, sizeof(*pieces));
	struct sigaction action = { .sa_handler = ask };
	sigset_t both, before;
	if (!pieces || !pages)
		fail("options");
	for (size_t i = 0; i < count; i++) {
		uint64_t state = 88172645463325252u + i;
		pieces[i] = piece(bytes, i & 1);
		for (size_t word = 0; word < bytes / 8; word++)
			((uint64_t *)pieces[i])[word] = draw(&state);
	}
	sigemptyset(&both), sigaddset(&both, SIGUSR1), sigaddset(&both, SIGTERM);
	sigprocmask(SIG_BLOCK, &both, &before);
	sigaction(SIGUSR1, &action, 0);
	announce();
	while (!is_over) {
		while (!is_asked && !is_over)
			sigsuspend(&before);
		if (is_over)
			break;
		is_asked = 0, turn++;
		for (size_t i = 0; i < count; i++)
			for (size_t k = 0; k < rewritten; k++)
				*(size_t *)(pieces[i] + k * pages / rewritten * PAGE) = turn;
		if (write(1, "written\n", 8) != 8)
			fail("nobody listens");
	}
	write_out(argc, argv, 0, 0);
	return 0;
}
