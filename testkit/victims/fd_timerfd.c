/* Proves that timerfds are restored: clock, remaining time, interval and unread expirations. One
 * timer is disarmed, and a periodic timer continues. */
#include "victim.h"

#include <poll.h>
#include <sys/timerfd.h>

#define FAR_SECONDS 3600
/* Maximum time that a long timer may lose between checkpoint and restore. */
#define FAR_SLACK_SECONDS 1200
#define PERIOD_NS 5000000

static int far_away, far_real, periodic, expired, disarmed;
static uint64_t expirations;

static int make(clockid_t clock, int flags, time_t seconds, long ns, long interval_ns)
{
	struct itimerspec setting = { .it_value = { seconds, ns }, .it_interval = { 0, interval_ns } };
	int fd = must(timerfd_create(clock, flags));
	must(timerfd_settime(fd, 0, &setting, NULL));
	return fd;
}

static void setup(void)
{
	struct pollfd wait;
	far_away = make(CLOCK_MONOTONIC, TFD_CLOEXEC, FAR_SECONDS, 0, 123456789);
	far_real = must(timerfd_create(CLOCK_REALTIME, 0));
	struct itimerspec setting = { .it_value = { time(NULL) + FAR_SECONDS, 0 } };
	must(timerfd_settime(far_real, TFD_TIMER_ABSTIME, &setting, NULL));
	periodic = make(CLOCK_BOOTTIME, TFD_NONBLOCK, 0, PERIOD_NS, PERIOD_NS);
	expired = make(CLOCK_MONOTONIC, TFD_NONBLOCK, 0, 1000, 0);
	disarmed = must(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
	wait = (struct pollfd){ .fd = expired, .events = POLLIN };
	check(poll(&wait, 1, 5000) == 1, "a timer of a microsecond does not expire");
}

static void work(void)
{
	uint64_t count = 0;
	ssize_t got = read(periodic, &count, sizeof(count));
	check(got == sizeof(count) || errno == EAGAIN, "periodic: %m");
	expirations += count;
}

static void check_setting(const char *name, int fd, time_t least, time_t most, long interval_ns)
{
	struct itimerspec now;
	must(timerfd_gettime(fd, &now));
	check(now.it_value.tv_sec >= least && now.it_value.tv_sec <= most, "%s: %lld s are left", name,
	      (long long)now.it_value.tv_sec);
	check(now.it_interval.tv_sec == 0 && now.it_interval.tv_nsec == interval_ns, "%s: interval changed", name);
}

static void verify(void)
{
	struct itimerspec now;
	check_setting("far", far_away, FAR_SECONDS - FAR_SLACK_SECONDS, FAR_SECONDS, 123456789);
	check_setting("far real", far_real, FAR_SECONDS - FAR_SLACK_SECONDS, FAR_SECONDS, 0);
	check_setting("periodic", periodic, 0, 1, PERIOD_NS);
	/* The remaining time is 0 while the timer is due and its interrupt has not occurred yet. */
	victim_await(must(timerfd_gettime(periodic, &now)) == 0 && now.it_value.tv_nsec > 0, "periodic: is disarmed");
	check_setting("expired", expired, 0, 0, 0);
	must(timerfd_gettime(disarmed, &now));
	check(now.it_value.tv_sec == 0 && now.it_value.tv_nsec == 0, "disarmed: is armed");
	check(fcntl(far_away, F_GETFD) == FD_CLOEXEC && fcntl(periodic, F_GETFD) == 0, "close-on-exec changed");
	check((fcntl(periodic, F_GETFL) & O_NONBLOCK) != 0 && (fcntl(far_away, F_GETFL) & O_NONBLOCK) == 0,
	      "status flags changed");
}

static void sabotage(void)
{
	uint64_t count;
	check(read(expired, &count, sizeof(count)) == sizeof(count), "sabotage: %m");
}

static void finish(void)
{
	uint64_t count = 0, before = expirations;
	check(read(expired, &count, sizeof(count)) == sizeof(count) && count == 1, "an unread expiration is lost");
	must_fail_with(read(disarmed, &count, sizeof(count)), EAGAIN);
	while (expirations < before + 5) {
		struct pollfd wait = { .fd = periodic, .events = POLLIN };
		check(poll(&wait, 1, 10000) == 1, "periodic: has stopped");
		work();
	}
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
