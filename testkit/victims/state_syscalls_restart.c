/* Proves that a thread that is blocked in a system call does not notice the checkpoint: it sees no
 * additional EINTR and no early return, and a timeout expires at about the right time. The time
 * between checkpoint and restore may be added to a timeout. The time that the thread has already
 * waited must not be added, so that repeated checkpoints never prevent a timeout. It may be added
 * once for calls whose remaining time is neither in the program's memory nor shown by the kernel.
 * There is one thread for each call. Calls with a timeout are repeated, and calls without a timeout
 * wait until finish. */
#include "victim.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PERIOD_US 1000000u
/* Maximum delay of a call, in addition to the time during which the whole program was stopped. */
#define SLACK_US (PERIOD_US / 2)
/* Maximum time by which a call may return early. Some calls count whole milliseconds. Timeouts of
 * sockets count ticks of up to 10 ms, from the last tick that the kernel has processed. If the host
 * takes a processor away, this last tick is older, by up to the time without the processor. */
#define EARLY_US 1000u
#define TICKS_EARLY_US 20000u
#define TICKS_LATE_MAX_US 80000u
#define BEAT_US 5000u
/* Maximum number of watched processors. */
#define BEATS_MAX 8

/* ---- beats: measure how long each processor, or the whole program, was stopped ---- */

struct beat {
	pthread_t thread;
	int processor;
	volatile uint64_t lost_us;
	volatile unsigned long count;
};

static struct beat beats[BEATS_MAX];
static size_t beating;
static volatile int leave, beat_no_more;

static void *beat_body(void *argument)
{
	struct beat *self = argument;
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(self->processor, &one);
	must(sched_setaffinity(0, sizeof(one), &one));
	uint64_t start = victim_now_us();
	while (!beat_no_more) {
		victim_nap(BEAT_US);
		/* Measures from one beat to the next, because the thread can be stopped at any
		 * point. */
		uint64_t now = victim_now_us(), took = now - start;
		start = now;
		if (took > 2 * BEAT_US)
			self->lost_us += took - BEAT_US;
		self->count++;
	}
	return NULL;
}

/* Starts one thread for each processor, because the host can take one processor away and leave the
 * others. */
static void start_beats(void)
{
	cpu_set_t allowed;
	must(sched_getaffinity(0, sizeof(allowed), &allowed));
	for (int processor = 0; processor < CPU_SETSIZE && beating < BEATS_MAX; processor++) {
		if (!CPU_ISSET(processor, &allowed))
			continue;
		beats[beating].processor = processor;
		beats[beating].thread = victim_thread(beat_body, &beats[beating]);
		beating++;
	}
}

static void end_beats(void)
{
	beat_no_more = 1;
	for (size_t i = 0; i < beating; i++)
		must_zero(pthread_join(beats[i].thread, NULL));
}

static uint64_t lost_so_far(void)
{
	uint64_t lost = 0;
	for (size_t i = 0; i < beating; i++) {
		unsigned long from = beats[i].count;
		victim_await(beats[i].count > from + 1, "the beat of processor %d has stopped", beats[i].processor);
		lost += beats[i].lost_us;
	}
	return lost;
}

/* ---- calls with a timeout ------------------------------------------------ */

static const struct timespec period = { PERIOD_US / 1000000u, (PERIOD_US % 1000000u) * 1000 };

static struct timespec in_one_period(void)
{
	struct timespec when;
	must(clock_gettime(CLOCK_MONOTONIC, &when));
	when.tv_sec += period.tv_sec;
	return when;
}

static long timed_nanosleep(void)
{
	struct timespec left;
	return nanosleep(&period, &left);
}

static long timed_clock_nanosleep(void)
{
	struct timespec when = in_one_period();
	return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
}

static long timed_poll(void)
{
	return poll(NULL, 0, PERIOD_US / 1000);
}

static long timed_ppoll(void)
{
	struct timespec limit = period;
	return ppoll(NULL, 0, &limit, NULL);
}

static long timed_select(void)
{
	struct timeval limit = { period.tv_sec, period.tv_nsec / 1000 };
	return select(0, NULL, NULL, NULL, &limit);
}

static long timed_epoll_wait(void)
{
	static int set = -1;
	struct epoll_event event;
	if (set < 0)
		set = must(epoll_create1(EPOLL_CLOEXEC));
	return epoll_wait(set, &event, 1, PERIOD_US / 1000);
}

static long expect_timeout(long result, int error)
{
	if (result < 0 && errno == error)
		return 0;
	return result < 0 ? result : 1;
}

static long timed_futex(void)
{
	static int word;
	return expect_timeout(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &period, NULL, 0), ETIMEDOUT);
}

static long timed_futex_absolute(void)
{
	static int word;
	struct timespec when = in_one_period();
	return expect_timeout(syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 0, &when, NULL, -1), ETIMEDOUT);
}

static long timed_sigtimedwait(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 9);
	return expect_timeout(sigtimedwait(&set, NULL, &period), EAGAIN);
}

static long timed_receive(void)
{
	static int ends[2];
	struct timeval limit = { period.tv_sec, period.tv_nsec / 1000 };
	char byte;
	if (ends[1] == 0) {
		must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
		must(setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	}
	return expect_timeout(recv(ends[0], &byte, 1, 0), EAGAIN);
}

struct timed {
	const char *name;
	long (*call)(void);
	bool left_unknown; /* the remaining time is not available */
	bool in_ticks;
	pthread_t thread;
	volatile unsigned long rounds;
};

static struct timed timed[] = {
	{ .name = "nanosleep", .call = timed_nanosleep },
	{ .name = "clock_nanosleep until", .call = timed_clock_nanosleep },
	{ .name = "poll with timeout", .call = timed_poll, .left_unknown = true },
	{ .name = "ppoll with timeout", .call = timed_ppoll },
	{ .name = "select with timeout", .call = timed_select },
	{ .name = "epoll_wait with timeout", .call = timed_epoll_wait, .left_unknown = true },
	{ .name = "futex with timeout", .call = timed_futex, .left_unknown = true },
	{ .name = "futex until", .call = timed_futex_absolute },
	{ .name = "sigtimedwait", .call = timed_sigtimedwait, .left_unknown = true },
	{ .name = "recv with SO_RCVTIMEO", .call = timed_receive, .left_unknown = true, .in_ticks = true },
};
#define TIMED (sizeof(timed) / sizeof(timed[0]))

static void *timed_body(void *argument)
{
	struct timed *self = argument;
	/* The threads start at different times, so that a checkpoint finds the calls in all phases. */
	victim_nap((uint64_t)(self - timed) * PERIOD_US / TIMED);
	while (!leave) {
		uint64_t lost = lost_so_far(), start = victim_now_us();
		long result = self->call();
		uint64_t took = victim_now_us() - start;
		check(result == 0, "%s: result %ld: %m", self->name, result);
		uint64_t stood_still = lost_so_far() - lost;
		uint64_t tick_late = stood_still < TICKS_LATE_MAX_US ? stood_still : TICKS_LATE_MAX_US;
		uint64_t early = self->in_ticks ? TICKS_EARLY_US + tick_late : EARLY_US;
		check(took + early >= PERIOD_US, "%s: returned after %llu us", self->name, (unsigned long long)took);
		uint64_t allowed = PERIOD_US + SLACK_US + stood_still + (self->left_unknown ? PERIOD_US : 0);
		check(took <= allowed, "%s: returned after %llu us, allowed were %llu", self->name, (unsigned long long)took,
		      (unsigned long long)allowed);
		self->rounds++;
	}
	return NULL;
}

/* ---- calls that wait until finish ----------------------------------------- */

static int read_pipe[2], poll_pipe[2], full_pipe[2], epoll_event_fd, epoll_set, receive_pair[2], listener;
static int futex_word, read_event_fd;
static struct sockaddr_un listener_address;
static socklen_t listener_size;
static pid_t waited_child;
static char fifo_path[PATH_MAX];
static volatile sig_atomic_t usr1_seen;

static long wait_read(void)
{
	char byte = 0;
	return read(read_pipe[0], &byte, 1) == 1 && byte == 'w' ? 0 : -1;
}

static long wait_read_event(void)
{
	uint64_t value = 0;
	return read(read_event_fd, &value, sizeof(value)) == sizeof(value) && value == 5 ? 0 : -1;
}

static long wait_write(void)
{
	return write(full_pipe[1], "w", 1) == 1 ? 0 : -1;
}

static long wait_poll(void)
{
	struct pollfd wait = { .fd = poll_pipe[0], .events = POLLIN };
	return poll(&wait, 1, -1) == 1 ? 0 : -1;
}

static long wait_epoll(void)
{
	struct epoll_event event = { 0 };
	return epoll_wait(epoll_set, &event, 1, -1) == 1 && event.data.u64 == 77 ? 0 : -1;
}

static long wait_futex(void)
{
	return syscall(SYS_futex, &futex_word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static long wait_suspended(void)
{
	sigset_t mask;
	sigfillset(&mask);
	sigdelset(&mask, SIGUSR1);
	return sigsuspend(&mask) < 0 && errno == EINTR && usr1_seen == 1 ? 0 : -1;
}

static long wait_signal(void)
{
	siginfo_t info;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 8);
	return sigwaitinfo(&set, &info) == SIGRTMIN + 8 && info.si_value.sival_int == 88 ? 0 : -1;
}

static long wait_child(void)
{
	int status = 0;
	return waitpid(waited_child, &status, 0) == waited_child && WTERMSIG(status) == SIGKILL ? 0 : -1;
}

static long wait_receive(void)
{
	char byte = 0;
	return recv(receive_pair[0], &byte, 1, 0) == 1 && byte == 'w' ? 0 : -1;
}

static long wait_accept(void)
{
	return accept4(listener, NULL, NULL, SOCK_CLOEXEC) >= 0 ? 0 : -1;
}

static long wait_open(void)
{
	return open(fifo_path, O_RDONLY | O_CLOEXEC) >= 0 ? 0 : -1;
}

struct waiting {
	const char *name;
	long (*call)(void);
	pthread_t thread;
	volatile int began, returned;
};

static struct waiting waiting[] = {
	{ .name = "read of a pipe", .call = wait_read },
	{ .name = "read of an eventfd", .call = wait_read_event },
	{ .name = "write to a full pipe", .call = wait_write },
	{ .name = "poll", .call = wait_poll },
	{ .name = "epoll_wait", .call = wait_epoll },
	{ .name = "futex", .call = wait_futex },
	{ .name = "sigsuspend", .call = wait_suspended },
	{ .name = "sigwaitinfo", .call = wait_signal },
	{ .name = "waitpid", .call = wait_child },
	{ .name = "recv", .call = wait_receive },
	{ .name = "accept", .call = wait_accept },
	{ .name = "open of a fifo", .call = wait_open },
};
#define WAITING (sizeof(waiting) / sizeof(waiting[0]))
#define WAITING_SUSPENDED 6

static void *waiting_body(void *argument)
{
	struct waiting *self = argument;
	self->began = 1;
	check(self->call() == 0, "%s: wrong result: %m", self->name);
	self->returned = 1;
	return NULL;
}

static void on_usr1(int signal)
{
	(void)signal;
	usr1_seen++;
}

static void open_things(void)
{
	struct sigaction action = { .sa_handler = on_usr1 };
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 77 };
	must(sigaction(SIGUSR1, &action, NULL));
	must(pipe(read_pipe));
	must(pipe(poll_pipe));
	must(pipe2(full_pipe, O_NONBLOCK));
	while (write(full_pipe[1], "x", 1) == 1)
		continue;
	must(fcntl(full_pipe[1], F_SETFL, 0));
	read_event_fd = must(eventfd(0, 0));
	epoll_event_fd = must(eventfd(0, 0));
	epoll_set = must(epoll_create1(0));
	must(epoll_ctl(epoll_set, EPOLL_CTL_ADD, epoll_event_fd, &event));
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, receive_pair));
	listener = must(socket(AF_UNIX, SOCK_STREAM, 0));
	listener_address.sun_family = AF_UNIX;
	must(bind(listener, (struct sockaddr *)&listener_address, sizeof(sa_family_t)));
	listener_size = sizeof(listener_address);
	must(getsockname(listener, (struct sockaddr *)&listener_address, &listener_size));
	must(listen(listener, 4));
	must(mkfifo(victim_path(fifo_path, "fifo"), 0600));
	waited_child = victim_fork();
	while (waited_child == 0)
		pause();
}

/* Completes each waiting call. */
static void wake_all(void)
{
	char bytes[4096];
	int client = must(socket(AF_UNIX, SOCK_STREAM, 0));
	check(write(read_pipe[1], "w", 1) == 1 && write(poll_pipe[1], "w", 1) == 1, "write: %m");
	check(write(read_event_fd, &(uint64_t){ 5 }, 8) == 8, "write: %m");
	check(write(epoll_event_fd, &(uint64_t){ 1 }, 8) == 8, "write: %m");
	must(read(full_pipe[0], bytes, sizeof(bytes)));
	must(syscall(SYS_futex, &futex_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
	must_zero(pthread_kill(waiting[WAITING_SUSPENDED].thread, SIGUSR1));
	must(sigqueue(getpid(), SIGRTMIN + 8, (union sigval){ .sival_int = 88 }));
	must(kill(waited_child, SIGKILL));
	check(send(receive_pair[1], "w", 1, 0) == 1, "send: %m");
	must(connect(client, (struct sockaddr *)&listener_address, listener_size));
	must(open(fifo_path, O_WRONLY | O_CLOEXEC));
}

/* ---- the victim ---------------------------------------------------------- */

static void setup(void)
{
	sigset_t set;
	open_things();
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 8);
	must(sigprocmask(SIG_BLOCK, &set, NULL));
	start_beats();
	for (size_t i = 0; i < TIMED; i++)
		timed[i].thread = victim_thread(timed_body, &timed[i]);
	for (size_t i = 0; i < WAITING; i++) {
		waiting[i].thread = victim_thread(waiting_body, &waiting[i]);
		victim_await(waiting[i].began, "%s: does not start", waiting[i].name);
	}
	/* The threads must open and close their descriptors before "ready", because the set of
	 * descriptors is compared. */
	for (size_t i = 0; i < TIMED; i++)
		victim_await(timed[i].rounds > 0, "%s: does not go round", timed[i].name);
}

static void verify(void)
{
	for (size_t i = 0; i < WAITING; i++)
		check(!waiting[i].returned, "%s: returned too early", waiting[i].name);
}

static void sabotage(void)
{
	check(write(poll_pipe[1], "w", 1) == 1, "write: %m");
	victim_await(waiting[3].returned, "poll does not return");
}

static void finish(void)
{
	unsigned long before[TIMED];
	for (size_t i = 0; i < TIMED; i++)
		before[i] = timed[i].rounds;
	for (size_t i = 0; i < TIMED; i++)
		victim_await(timed[i].rounds > before[i], "%s: does not come back", timed[i].name);
	wake_all();
	for (size_t i = 0; i < WAITING; i++)
		victim_await(waiting[i].returned, "%s: does not come back", waiting[i].name);
	leave = 1;
	for (size_t i = 0; i < TIMED; i++)
		must_zero(pthread_join(timed[i].thread, NULL));
	end_beats();
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
