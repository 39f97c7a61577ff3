/* One process with four threads and armed timers. Each thread changes its memory and checks it.
 *
 *   armed SAID    SAID receives one line `PID ADDRESS` for each counter: the steps of the four
 *                 threads, the signals of three timers, then the microseconds that two long
 *                 timers have run at the last step of thread 0.
 *
 * thread 0   checks that the long timers never go back. Receives the SIGPROF of an interval timer of
 *            CPU time.
 * thread 1   receives the signals of an interval timer that notifies this thread.
 * thread 2   blocks the signals of an interval timer, and takes them from the queue.
 * thread 3   sleeps in each step.
 *
 * On SIGTERM, the process exits with 0. On an error, it exits with 1 immediately. SIGUSR1 creates
 * one more timer. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define THREADS 4
#define CELLS 4096
/* Memory that is never written again. */
#define STILL_BYTES (4 << 20)
#define LONG_S 1000
/* The precision of the clocks of the timers. */
#define PRECISION_US 2000
#define SHORT_NS 1000000

static volatile sig_atomic_t told;
static volatile uint64_t steps[THREADS];
/* Each handler changes both counters of its timer. */
static volatile uint64_t ticks[3], mirror[3];
static volatile uint64_t spent_us[2];
static uint64_t *cells[THREADS];
static unsigned char *still;
static timer_t long_timer;

static void wrong(const char *what, int64_t value)
{
	fprintf(stderr, "armed: %s (%lld)\n", what, (long long)value);
	_exit(1);
}

static void tell(int signal)
{
	told = signal;
}

static void never(int signal)
{
	wrong("a long timer has expired", signal);
}

static void profile(int signal)
{
	(void)signal;
	ticks[0]++;
	mirror[0]++;
}

static void notify(int signal)
{
	(void)signal;
	ticks[1]++;
	mirror[1]++;
}

static void create_more(int signal)
{
	timer_t timer;
	struct sigevent event = { .sigev_notify = SIGEV_NONE };
	(void)signal;
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
		wrong("timer_create", 0);
}

static timer_t start(int notice, int signal, clockid_t clock, long s, long ns)
{
	timer_t timer;
	struct sigevent event = { .sigev_notify = notice, .sigev_signo = signal };
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	struct itimerspec spec = { .it_interval = { 0, ns }, .it_value = { s, ns } };
	if (timer_create(clock, &event, &timer) != 0 || timer_settime(timer, 0, &spec, NULL) != 0)
		wrong("start a timer", signal);
	return timer;
}

static int64_t spent_now_us(int which)
{
	int64_t left;
	if (which == 0) {
		struct itimerspec spec;
		timer_gettime(long_timer, &spec);
		left = spec.it_value.tv_sec * 1000000 + spec.it_value.tv_nsec / 1000;
	} else {
		struct itimerval value;
		getitimer(ITIMER_REAL, &value);
		left = value.it_value.tv_sec * 1000000 + value.it_value.tv_usec;
	}
	return LONG_S * 1000000ll - left;
}

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static uint64_t sum_of(const uint64_t *of)
{
	uint64_t sum = 0;
	for (size_t at = 0; at < CELLS; at++)
		sum += of[at];
	return sum;
}

static void *work(void *argument)
{
	int index = (int)(intptr_t)argument;
	uint64_t random = 0x9e3779b97f4a7c15ull + (uint64_t)index, sum = 0, count = 0;
	pid_t tid = (pid_t)syscall(SYS_gettid);
	sigset_t taken;
	sigemptyset(&taken);
	sigaddset(&taken, SIGRTMIN + 1);
	if (index == 1) {
		start(SIGEV_THREAD_ID, SIGRTMIN, CLOCK_MONOTONIC, 0, SHORT_NS);
	} else if (index == 2) {
		start(SIGEV_THREAD_ID, SIGRTMIN + 1, CLOCK_MONOTONIC, 0, SHORT_NS);
	}
	while (!told) {
		for (int step = 0; step < 64; step++) {
			size_t at = next(&random) % CELLS;
			uint64_t value = next(&random);
			sum += value - cells[index][at];
			cells[index][at] = value;
		}
		for (int which = 0; index == 0 && which < 2; which++) {
			int64_t now = spent_now_us(which), back = (int64_t)spent_us[which] - now;
			if (back > PRECISION_US)
				wrong(which == 0 ? "the POSIX timer" : "the interval timer", back);
			spent_us[which] = (uint64_t)now;
		}
		if (index == 1) {
			/* The handler can run between the reads. */
			uint64_t first = ticks[1], other = mirror[1];
			if (ticks[1] == first && first != other)
				wrong("a handler that ran in part", 1);
		}
		if (index == 2) {
			struct timespec none = { 0, 0 };
			while (sigtimedwait(&taken, NULL, &none) > 0) {
				ticks[2]++;
				mirror[2]++;
			}
			if (ticks[2] != mirror[2])
				wrong("the taken signals", 2);
		}
		if (index == 3) {
			struct timespec wait = { 0, 200000 };
			nanosleep(&wait, NULL);
		}
		if (syscall(SYS_gettid) != tid)
			wrong("another thread", index);
		if (steps[index] != count)
			wrong("the number of steps", index);
		steps[index] = ++count;
		if (count % 16 == 0 && sum_of(cells[index]) != sum)
			wrong("the sum of the cells", index);
	}
	for (size_t at = 0; index == 0 && at < STILL_BYTES; at++)
		if (still[at] != (unsigned char)(at / 4096 + 1))
			wrong("memory that was never written", (int64_t)at);
	return NULL;
}

static void *map(size_t bytes)
{
	void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (found == MAP_FAILED)
		wrong("mmap", (int64_t)bytes);
	return found;
}

static void handle(int signal, void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	sigaction(signal, &action, NULL);
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	char line[128];
	if (argc != 2)
		return 2;
	handle(SIGTERM, tell);
	handle(SIGUSR1, create_more);
	handle(SIGUSR2, never);
	handle(SIGALRM, never);
	handle(SIGPROF, profile);
	handle(SIGRTMIN, notify);
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGRTMIN + 1);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	still = map(STILL_BYTES);
	for (size_t at = 0; at < STILL_BYTES; at++)
		still[at] = (unsigned char)(at / 4096 + 1);
	for (int index = 0; index < THREADS; index++)
		cells[index] = map(CELLS * sizeof(uint64_t));
	long_timer = start(SIGEV_SIGNAL, SIGUSR2, CLOCK_MONOTONIC, LONG_S, 0);
	struct itimerval real = { .it_value = { LONG_S, 0 } };
	struct itimerval cpu = { .it_value = { 0, 5000 }, .it_interval = { 0, 5000 } };
	if (setitimer(ITIMER_REAL, &real, NULL) != 0 || setitimer(ITIMER_PROF, &cpu, NULL) != 0)
		wrong("setitimer", 0);
	/* The main thread alone receives the signals of the process. */
	sigset_t others, old;
	sigfillset(&others);
	sigdelset(&others, SIGRTMIN);
	pthread_sigmask(SIG_SETMASK, &others, &old);
	for (int index = 1; index < THREADS; index++)
		if (pthread_create(&threads[index], NULL, work, (void *)(intptr_t)index) != 0)
			wrong("pthread_create", index);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	int said = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	const volatile uint64_t *counters[] = { &steps[0], &steps[1], &steps[2], &steps[3], &ticks[0],
						&ticks[1], &ticks[2], &spent_us[0], &spent_us[1] };
	for (size_t index = 0; index < sizeof(counters) / sizeof(*counters); index++) {
		int length = snprintf(line, sizeof(line), "%d %lu\n", getpid(),
				      (unsigned long)(uintptr_t)counters[index]);
		if (write(said, line, (size_t)length) != length)
			wrong("write", length);
	}
	close(said);
	work((void *)0);
	for (int index = 1; index < THREADS; index++)
		pthread_join(threads[index], NULL);
	return 0;
}
