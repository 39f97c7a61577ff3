/* Has a mapping of memory that the kernel itself cannot read (memfd_secret). */
#include "victim_memory.h"

#define BYTES (2 * VICTIM_PAGE)

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

static unsigned char *area;

static void setup(void)
{
	int file = (int)syscall(SYS_memfd_secret, O_CLOEXEC);
	if (file < 0)
		victim_unsupported("memfd_secret: %m");
	must(ftruncate(file, BYTES));
	unsigned char *wanted = victim_place(BYTES);
	area = mmap(wanted, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
	if (area == MAP_FAILED)
		victim_unsupported("a mapping of secret memory: %m");
	close(file);
	victim_fill(area, BYTES, 1);
}

static void verify(void)
{
	check(victim_differs(area, BYTES, 1) < 0, "the area has another content");
}

static void sabotage(void)
{
	area[7] ^= 1;
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
