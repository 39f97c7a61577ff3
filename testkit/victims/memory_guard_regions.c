/* Proves that lightweight guard pages (MADV_GUARD_INSTALL) are restored: an access to a guard page
 * faults, and neighbouring pages keep their content. */
#include "victim.h"
#include "victim_memory.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

#define PAGES 16u

static unsigned char *area;
static volatile sig_atomic_t faults;

static bool is_guard(unsigned page)
{
	return page == 3 || page == 4 || page == PAGES - 1;
}

/* Handles the expected fault: removes the guard of the page, so that the access succeeds when it is
 * repeated. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	unsigned char *page = (unsigned char *)((uintptr_t)info->si_addr & ~(uintptr_t)(VICTIM_PAGE - 1));
	faults++;
	if (page < area || page >= area + PAGES * VICTIM_PAGE || madvise(page, VICTIM_PAGE, MADV_GUARD_REMOVE) != 0)
		_exit(3);
}

static void guard(unsigned page)
{
	must(madvise(area + page * VICTIM_PAGE, VICTIM_PAGE, MADV_GUARD_INSTALL));
}

static void setup(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	must(sigaction(SIGSEGV, &action, NULL));
	area = victim_map(PAGES * VICTIM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	victim_fill(area, PAGES * VICTIM_PAGE, 1);
	if (madvise(area + 3 * VICTIM_PAGE, VICTIM_PAGE, MADV_GUARD_INSTALL) != 0)
		victim_unsupported("MADV_GUARD_INSTALL: %m");
	guard(4);
	guard(PAGES - 1);
}

static void verify(void)
{
	for (unsigned page = 0; page < PAGES; page++) {
		int before = faults;
		const unsigned char *at = area + page * VICTIM_PAGE;
		unsigned char first = *(volatile unsigned char *)at;
		check((faults != before) == is_guard(page), "page %u %s", page, faults != before ? "faults" : "does not fault");
		if (is_guard(page)) {
			check(first == 0, "an opened guard page is not zero");
			guard(page);
			continue;
		}
		for (size_t i = 0; i < VICTIM_PAGE; i++)
			check(at[i] == victim_byte(1, page * VICTIM_PAGE + i), "page %u, byte %zu is wrong", page, i);
	}
}

static void sabotage(void)
{
	must(madvise(area + 4 * VICTIM_PAGE, VICTIM_PAGE, MADV_GUARD_REMOVE));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
