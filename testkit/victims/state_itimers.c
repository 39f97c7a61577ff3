/* Proves that the three interval timers are restored. The real timer expires far in the future, and
 * keeps its remaining time and its interval. The virtual timer and the profiling timer still expire
 * as the program uses processor time. */
#include "victim.h"

#include <sys/time.h>

#define FAR_SECONDS 3600
#define FAR_SLACK_SECONDS 1200
#define PERIOD_US 20000

static volatile sig_atomic_t virtual_ticks, profile_ticks, alarms;

static void on_tick(int signal)
{
	if (signal == SIGVTALRM)
		virtual_ticks++;
	else if (signal == SIGPROF)
		profile_ticks++;
	else
		alarms++;
}

static void setup(void)
{
	struct sigaction action = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
	struct itimerval far_away = { { 7, 123000 }, { FAR_SECONDS, 0 } };
	struct itimerval period = { { 0, PERIOD_US }, { 0, PERIOD_US } };
	must(sigaction(SIGVTALRM, &action, NULL));
	must(sigaction(SIGPROF, &action, NULL));
	must(sigaction(SIGALRM, &action, NULL));
	must(setitimer(ITIMER_REAL, &far_away, NULL));
	must(setitimer(ITIMER_VIRTUAL, &period, NULL));
	must(setitimer(ITIMER_PROF, &period, NULL));
}

/* Uses processor time, so that the timers count. */
static void work(void)
{
	uint64_t until = victim_now_us() + 300;
	while (victim_now_us() < until)
		continue;
}

static void check_period(const char *name, __itimer_which_t which)
{
	struct itimerval now;
	must(getitimer(which, &now));
	check(now.it_interval.tv_sec == 0 && now.it_interval.tv_usec == PERIOD_US, "%s: interval is %ld us", name,
	      (long)now.it_interval.tv_usec);
	check(now.it_value.tv_sec == 0 && now.it_value.tv_usec > 0 && now.it_value.tv_usec <= 2 * PERIOD_US,
	      "%s: %ld us are left", name, (long)now.it_value.tv_usec);
}

static void verify(void)
{
	struct itimerval now;
	must(getitimer(ITIMER_REAL, &now));
	check(now.it_value.tv_sec > FAR_SECONDS - FAR_SLACK_SECONDS && now.it_value.tv_sec <= FAR_SECONDS,
	      "real: %ld s are left", (long)now.it_value.tv_sec);
	check(now.it_interval.tv_sec == 7 && now.it_interval.tv_usec == 123000, "real: interval changed");
	check(alarms == 0, "real: expired early");
	check_period("virtual", ITIMER_VIRTUAL);
	check_period("profile", ITIMER_PROF);
}

static void sabotage(void)
{
	struct itimerval none = { { 0, 0 }, { 0, 0 } };
	must(setitimer(ITIMER_VIRTUAL, &none, NULL));
}

static void finish(void)
{
	int virtual_before = virtual_ticks, profile_before = profile_ticks;
	uint64_t until = victim_now_us() + victim_patience_us;
	while (virtual_ticks < virtual_before + 2 || profile_ticks < profile_before + 2)
		check(victim_now_us() < until, "the timers have stopped");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
