/* Proves that the vDSO works after a restore, and that time continues. Clocks read through the vDSO
 * agree with the system call and never step back. The ELF header is at the address in the auxiliary
 * vector. */
#include "victim.h"

#include <elf.h>
#include <sys/auxv.h>
#include <sys/time.h>

/* The program can be preempted between two readings of a clock. */
#define AGREEMENT_NS 2000000000ll

static int64_t last_monotonic, last_boot, last_real;
static unsigned long address;

static int64_t nanoseconds(struct timespec time)
{
	return (int64_t)time.tv_sec * 1000000000ll + time.tv_nsec;
}

static int64_t through_vdso(clockid_t clock)
{
	struct timespec time;
	must(clock_gettime(clock, &time));
	return nanoseconds(time);
}

static int64_t through_kernel(clockid_t clock)
{
	struct timespec time;
	must(syscall(SYS_clock_gettime, clock, &time));
	return nanoseconds(time);
}

static void check_clock(const char *name, clockid_t clock, int64_t *last)
{
	int64_t before = through_kernel(clock), now = through_vdso(clock), after = through_kernel(clock);
	check(now >= *last, "%s clock stepped back by %lld ns", name, (long long)(*last - now));
	check(before <= now && now <= after, "%s clock is %lld ns before or %lld ns after the kernel's", name,
	      (long long)(before - now), (long long)(now - after));
	*last = now;
}

static void work(void)
{
	struct timeval day;
	unsigned cpu = ~0u;
	check_clock("monotonic", CLOCK_MONOTONIC, &last_monotonic);
	check_clock("boot", CLOCK_BOOTTIME, &last_boot);
	last_real = 0; /* the administrator may set this clock */
	check_clock("real", CLOCK_REALTIME, &last_real);
	must(gettimeofday(&day, NULL));
	check(llabs((int64_t)day.tv_sec * 1000000000ll + day.tv_usec * 1000ll - last_real) < AGREEMENT_NS,
	      "gettimeofday disagrees");
	must(getcpu(&cpu, NULL));
	check(cpu < 65536, "getcpu says %u", cpu);
}

static void setup(void)
{
	address = getauxval(AT_SYSINFO_EHDR);
	if (address == 0)
		victim_unsupported("there is no vDSO");
}

static void verify(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int found = 0;
	check(maps != NULL, "maps: %m");
	while (fgets(line, sizeof(line), maps) != NULL)
		if (strstr(line, "[vdso]") != NULL) {
			check(strtoul(line, NULL, 16) == address, "the vDSO is at %.12s, was at %lx", line, address);
			found++;
		}
	fclose(maps);
	check(found == 1, "there are %d vDSOs", found);
	check(memcmp((const void *)address, ELFMAG, SELFMAG) == 0, "there is no ELF header at %lx", address);
	work();
}

static void sabotage(void)
{
	last_monotonic += 3600ll * 1000000000ll;
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
