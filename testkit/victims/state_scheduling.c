/* Proves that scheduling is restored for each thread: policy, nice value, real-time priority,
 * reset-on-fork, affinity, I/O priority and timer slack. A real-time policy is skipped if the user
 * lacks the permission. */
#include "victim.h"

#include <sched.h>
#include <sys/resource.h>

#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_BEST_EFFORT (2 << 13)
#define IOPRIO_IDLE (3 << 13)
#define THREADS 5

struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
	uint32_t util_min, util_max;
};

struct state {
	struct attributes attributes;
	cpu_set_t affinity;
	int io_priority;
	unsigned long timer_slack;
};

struct plan {
	const char *name;
	uint32_t policy, priority;
	uint64_t flags;
	int nice;
	int io_priority;
	unsigned long timer_slack;
	pthread_t thread;
	volatile pid_t tid;
	volatile unsigned long rounds;
	struct state state;
};

static struct plan plans[THREADS] = {
	{ .name = "other", .policy = SCHED_OTHER, .nice = 7, .io_priority = IOPRIO_BEST_EFFORT | 6, .timer_slack = 123456 },
	{ .name = "batch", .policy = SCHED_BATCH, .nice = 3, .io_priority = IOPRIO_BEST_EFFORT | 2, .timer_slack = 1 },
	{ .name = "idle", .policy = SCHED_IDLE, .nice = 0, .io_priority = IOPRIO_IDLE | 7, .timer_slack = 2000000 },
	{ .name = "reset on fork", .policy = SCHED_OTHER, .nice = 1, .flags = 1, .timer_slack = 50001 },
	{ .name = "round robin", .policy = SCHED_RR, .priority = 2, .io_priority = IOPRIO_BEST_EFFORT | 1, .timer_slack = 0 },
};
static volatile int leave;

static void look(struct state *state)
{
	memset(state, 0, sizeof(*state));
	must(syscall(SYS_sched_getattr, 0, &state->attributes, sizeof(state->attributes), 0));
	must(sched_getaffinity(0, sizeof(state->affinity), &state->affinity));
	state->io_priority = (int)must(syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0));
	state->timer_slack = (unsigned long)must(prctl(PR_GET_TIMERSLACK));
}

/* Pins the thread to one allowed processor, chosen by its number. */
static void pin(int number)
{
	cpu_set_t allowed, one;
	int wanted, cpu = -1;
	must(sched_getaffinity(0, sizeof(allowed), &allowed));
	wanted = number % CPU_COUNT(&allowed);
	do
		cpu++;
	while (!CPU_ISSET(cpu, &allowed) || wanted-- > 0);
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	must(sched_setaffinity(0, sizeof(one), &one));
}

static void apply(const struct plan *plan)
{
	struct attributes wanted = { .size = 48, .policy = plan->policy, .flags = plan->flags, .nice = plan->nice,
				     .priority = plan->priority };
	if (plan->timer_slack != 0)
		must(prctl(PR_SET_TIMERSLACK, plan->timer_slack));
	if (plan->io_priority != 0)
		must(syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, plan->io_priority));
	pin((int)(plan - plans));
	if (syscall(SYS_sched_setattr, 0, &wanted, 0) != 0)
		check(errno == EPERM && plan->policy == SCHED_RR, "%s: sched_setattr: %m", plan->name);
}

static void check_same(const struct plan *plan)
{
	struct state now;
	look(&now);
	const struct attributes *is = &now.attributes, *was = &plan->state.attributes;
	check(is->policy == was->policy, "%s: policy is %u, was %u", plan->name, is->policy, was->policy);
	check(is->flags == was->flags, "%s: flags are %#llx, were %#llx", plan->name, (unsigned long long)is->flags,
	      (unsigned long long)was->flags);
	check(is->nice == was->nice && is->priority == was->priority, "%s: nice %d, priority %u; were %d, %u", plan->name,
	      is->nice, is->priority, was->nice, was->priority);
	check(memcmp(is, was, sizeof(*is)) == 0, "%s: attributes changed", plan->name);
	check(CPU_EQUAL(&now.affinity, &plan->state.affinity), "%s: affinity changed", plan->name);
	check(now.io_priority == plan->state.io_priority, "%s: I/O priority is %#x, was %#x", plan->name, now.io_priority,
	      plan->state.io_priority);
	check(now.timer_slack == plan->state.timer_slack, "%s: timer slack is %lu, was %lu", plan->name, now.timer_slack,
	      plan->state.timer_slack);
}

static void *body(void *argument)
{
	struct plan *plan = argument;
	apply(plan);
	look(&plan->state);
	plan->tid = (pid_t)syscall(SYS_gettid);
	while (!leave) {
		check_same(plan);
		plan->rounds++;
		victim_nap(5 * VICTIM_NAP_US);
	}
	return NULL;
}

static void setup(void)
{
	for (int i = 0; i < THREADS; i++)
		plans[i].thread = victim_thread(body, &plans[i]);
}

static void verify(void)
{
	for (int i = 0; i < THREADS; i++) {
		unsigned long before = plans[i].rounds;
		victim_await(plans[i].rounds > before + 1, "%s: stands still", plans[i].name);
	}
}

static void sabotage(void)
{
	must(setpriority(PRIO_PROCESS, (id_t)plans[1].tid, 19));
}

static void finish(void)
{
	leave = 1;
	for (int i = 0; i < THREADS; i++)
		must_zero(pthread_join(plans[i].thread, NULL));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
