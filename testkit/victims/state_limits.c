/* Proves that soft and hard resource limits are restored and enforced: descriptors above
 * RLIMIT_NOFILE and memory above RLIMIT_AS are refused. One descriptor is open above the soft
 * limit, and the restore must create it. */
#include "victim.h"

#include <sys/mman.h>
#include <sys/resource.h>

#define HIGH_FD 300

struct limit {
	int resource;
	rlim_t soft, hard;
};

static struct limit limits[] = {
	{ RLIMIT_NOFILE, 64, 512 },
	{ RLIMIT_AS, 1ull << 30, 1ull << 31 },
	{ RLIMIT_CORE, 0, 0 },
	{ RLIMIT_CPU, 4000, 5000 },
	{ RLIMIT_DATA, 1ull << 29, 1ull << 30 },
	{ RLIMIT_FSIZE, 1ull << 33, 1ull << 34 },
	{ RLIMIT_MEMLOCK, 1 << 14, 1 << 15 },
	{ RLIMIT_MSGQUEUE, 1 << 12, 1 << 13 },
	{ RLIMIT_NICE, 0, 0 },
	{ RLIMIT_NPROC, 5000, 6000 },
	{ RLIMIT_RSS, 1 << 28, 1 << 29 },
	{ RLIMIT_RTPRIO, 0, 0 },
	{ RLIMIT_RTTIME, 1000000, 2000000 },
	{ RLIMIT_SIGPENDING, 1000, 1001 },
	{ RLIMIT_STACK, 2 << 20, 4 << 20 },
	{ RLIMIT_LOCKS, 10, 20 },
};
#define LIMITS (sizeof(limits) / sizeof(limits[0]))

static rlim_t smaller(rlim_t one, rlim_t two)
{
	return one < two ? one : two;
}

/* Sets the wanted limits. A limit above the inherited hard limit is lowered to this hard limit. */
static void setup(void)
{
	must(dup2(STDOUT_FILENO, HIGH_FD));
	for (size_t i = 0; i < LIMITS; i++) {
		struct rlimit now;
		must(getrlimit((__rlimit_resource_t)limits[i].resource, &now));
		limits[i].hard = smaller(limits[i].hard, now.rlim_max);
		limits[i].soft = smaller(limits[i].soft, limits[i].hard);
		now = (struct rlimit){ limits[i].soft, limits[i].hard };
		must(setrlimit((__rlimit_resource_t)limits[i].resource, &now));
	}
}

static void verify(void)
{
	for (size_t i = 0; i < LIMITS; i++) {
		struct rlimit now;
		must(getrlimit((__rlimit_resource_t)limits[i].resource, &now));
		check(now.rlim_cur == limits[i].soft && now.rlim_max == limits[i].hard, "limit %d is %llu/%llu, was %llu/%llu",
		      limits[i].resource, (unsigned long long)now.rlim_cur, (unsigned long long)now.rlim_max,
		      (unsigned long long)limits[i].soft, (unsigned long long)limits[i].hard);
	}
	must_fail_with(fcntl(STDOUT_FILENO, F_DUPFD, (int)limits[0].soft), EINVAL);
	must(fcntl(HIGH_FD, F_GETFD));
	check(mmap(NULL, 1ull << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED,
	      "RLIMIT_AS does not bite");
}

static void sabotage(void)
{
	struct rlimit lower = { limits[0].soft - 1, limits[0].hard };
	must(setrlimit(RLIMIT_NOFILE, &lower));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
