/* Proves that POSIX timers are restored with their ids (with a gap): clock, notification, value,
 * remaining time, interval, the thread that receives the signal, and an expiration whose signal is
 * pending. */
#include "victim.h"

#define FAR_SECONDS 3600
#define FAR_SLACK_SECONDS 1200
#define PERIOD_NS 5000000

struct timer {
	const char *name;
	clockid_t clock;
	int notify, signal, value;
	time_t seconds;
	long ns, interval_ns;
	int id;
};

enum { FAR_AWAY, GONE, PERIODIC, THREAD, SILENT, DISARMED, PROCESSOR, EXPIRED, TIMERS };

static struct timer timers[TIMERS] = {
	[FAR_AWAY] = { "far", CLOCK_REALTIME, SIGEV_SIGNAL, 0, 501, FAR_SECONDS, 0, 777, -1 },
	[GONE] = { "gone", CLOCK_MONOTONIC, SIGEV_NONE, 0, 0, 0, 0, 0, -1 },
	[PERIODIC] = { "periodic", CLOCK_MONOTONIC, SIGEV_SIGNAL, 1, 502, 0, PERIOD_NS, PERIOD_NS, -1 },
	[THREAD] = { "for a thread", CLOCK_BOOTTIME, SIGEV_THREAD_ID, 2, 503, 0, PERIOD_NS, PERIOD_NS, -1 },
	[SILENT] = { "silent", CLOCK_MONOTONIC, SIGEV_NONE, 0, 0, FAR_SECONDS, 0, 0, -1 },
	[DISARMED] = { "disarmed", CLOCK_MONOTONIC, SIGEV_SIGNAL, 3, 505, 0, 0, 0, -1 },
	[PROCESSOR] = { "processor time", CLOCK_PROCESS_CPUTIME_ID, SIGEV_SIGNAL, 3, 506, FAR_SECONDS, 0, 0, -1 },
	[EXPIRED] = { "expired", CLOCK_MONOTONIC, SIGEV_SIGNAL, 4, 507, 0, 1000, 0, -1 },
};

static pthread_t thread;
static volatile pid_t thread_id;
static volatile int thread_signals, thread_done;
static int periodic_signals;

/* Waits for one real-time signal. Returns false if it does not arrive in time. */
static bool wait_signal(int number, time_t seconds, siginfo_t *info)
{
	struct timespec limit = { seconds, 0 };
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + number);
	return sigtimedwait(&set, info, &limit) == SIGRTMIN + number;
}

static void check_signal(const struct timer *timer, const siginfo_t *info)
{
	check(info->si_code == SI_TIMER && info->si_value.sival_int == timer->value, "%s: code %d, value %d", timer->name,
	      info->si_code, info->si_value.sival_int);
}

static void *thread_body(void *unused)
{
	siginfo_t info;
	(void)unused;
	thread_id = (pid_t)syscall(SYS_gettid);
	while (!thread_done) {
		if (wait_signal(timers[THREAD].signal, 1, &info)) {
			check_signal(&timers[THREAD], &info);
			thread_signals++;
		}
	}
	return NULL;
}

static void create(struct timer *timer)
{
	struct sigevent event = { .sigev_notify = timer->notify, .sigev_signo = SIGRTMIN + timer->signal,
				  .sigev_value.sival_int = timer->value };
	struct itimerspec setting = { { 0, timer->interval_ns }, { timer->seconds, timer->ns } };
	if (timer->notify == SIGEV_THREAD_ID)
		event._sigev_un._tid = thread_id;
	must(syscall(SYS_timer_create, timer->clock, &event, &timer->id));
	must(syscall(SYS_timer_settime, timer->id, 0, &setting, NULL));
}

static void setup(void)
{
	sigset_t set, pending;
	sigemptyset(&set);
	for (int number = 0; number <= 4; number++)
		sigaddset(&set, SIGRTMIN + number);
	must(sigprocmask(SIG_BLOCK, &set, NULL));
	thread = victim_thread(thread_body, NULL);
	victim_await(thread_id != 0, "the thread does not start");
	for (int i = 0; i < TIMERS; i++)
		create(&timers[i]);
	must(syscall(SYS_timer_delete, timers[GONE].id));
	do
		must(sigpending(&pending));
	while (!sigismember(&pending, SIGRTMIN + timers[EXPIRED].signal));
}

static void work(void)
{
	siginfo_t info;
	if (wait_signal(timers[PERIODIC].signal, 0, &info)) {
		check_signal(&timers[PERIODIC], &info);
		periodic_signals++;
	}
}

static void verify(void)
{
	struct itimerspec now;
	sigset_t pending;
	must_fail_with(syscall(SYS_timer_gettime, timers[GONE].id, &now), EINVAL);
	for (int i = 0; i < TIMERS; i++) {
		const struct timer *timer = &timers[i];
		if (i == GONE)
			continue;
		check(syscall(SYS_timer_gettime, timer->id, &now) == 0, "%s: id %d: %m", timer->name, timer->id);
		check(now.it_interval.tv_nsec == timer->interval_ns, "%s: interval is %ld", timer->name, now.it_interval.tv_nsec);
		time_t least = timer->seconds > FAR_SLACK_SECONDS ? timer->seconds - FAR_SLACK_SECONDS : 0;
		check(now.it_value.tv_sec >= least && now.it_value.tv_sec <= timer->seconds, "%s: %lld s are left",
		      timer->name, (long long)now.it_value.tv_sec);
		bool armed = now.it_value.tv_sec != 0 || now.it_value.tv_nsec != 0;
		check(armed == (i != DISARMED && i != EXPIRED), "%s: is %sarmed", timer->name, armed ? "" : "not ");
	}
	must(sigpending(&pending));
	check(sigismember(&pending, SIGRTMIN + timers[EXPIRED].signal), "the pending expiration is lost");
}

static void sabotage(void)
{
	must(syscall(SYS_timer_delete, timers[PROCESSOR].id));
}

static void finish(void)
{
	siginfo_t info;
	int before = periodic_signals, thread_before = thread_signals;
	victim_await((work(), periodic_signals > before + 3), "the periodic timer has stopped");
	victim_await(thread_signals > thread_before + 3, "the timer of the thread has stopped");
	check(wait_signal(timers[EXPIRED].signal, 0, &info), "the pending expiration is lost");
	check_signal(&timers[EXPIRED], &info);
	check(!wait_signal(timers[EXPIRED].signal, 0, &info), "the pending expiration came twice");
	thread_done = 1;
	must_zero(pthread_join(thread, NULL));
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
