/* The code that all victims share. A victim is a test program that checks its own state. This file
 * implements the protocol between a victim and the harness, which checkpoints, kills and restores
 * the victim.
 *
 *   argv[1]           absolute path of the verdict file. The victim opens, writes and closes
 *                     it only for the verdict, so that no descriptor of it stays open.
 *   stdout            receives "ready\n" when the state is set up and has been checked once.
 *   SIGTERM           requests the verdict. The loop runs a few more rounds, which proves that
 *                     the victim still works. Then the victim verifies all state and writes
 *                     PASS or FAIL: reason.
 *   VICTIM_CRASHED    set: the program was restored after a crash. The harness sets it only for
 *                     victims with a comment line that begins with `After a crash:`. This line
 *                     says which state can differ after a crash.
 *   VICTIM_SABOTAGE   set: the program damages its own state immediately before it verifies the
 *                     state, so the verdict must be FAIL.
 *   VICTIM_LACKING    set: the program reports that it cannot run on this machine.
 *   exit status       0 passed, 1 failed, 77 a kernel feature or a permission is missing.
 *
 * A victim defines a `struct victim` and passes it to VICTIM_MAIN. In addition to the victim's own
 * checks, this file checks that no checkpoint changes these: pid, tid, session, process group,
 * signal mask, thread name, working directory, and the set of open descriptors. */
#ifndef UNDYING_VICTIM_H
#define UNDYING_VICTIM_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VICTIM_UNSUPPORTED_STATUS 77
/* Number of loop rounds after SIGTERM, before the verdict. */
#define VICTIM_TICKS_AFTER_TERM 3
/* Pause between two rounds of the loop, so that two victims can share one core. */
#define VICTIM_NAP_US 200
/* The check of open descriptors covers only descriptors below this limit. */
#define VICTIM_FDS_MAX 1024
/* Maximum duration of one wait in a victim, on a machine of normal speed. */
#define VICTIM_PATIENCE_US (20 * 1000000ull)
/* Environment variable with the slowness factor of this machine (testkit/src/limits.rs). */
#define VICTIM_SLOWNESS "UNDYING_TEST_SLOWNESS"

struct victim {
	void (*setup)(void);    /* builds the state */
	void (*work)(void);     /* one round of load; may be NULL */
	void (*verify)(void);   /* runs before "ready" and for the verdict */
	void (*sabotage)(void); /* damages state that verify or finish checks */
	void (*finish)(void);   /* checks that consume the state; may be NULL */
	bool busy;              /* no pause between two rounds */
};

static char victim_verdict[PATH_MAX];
static bool victim_sabotaged;
static bool victim_crashed;
static volatile sig_atomic_t victim_told_to_judge;
static volatile unsigned long victim_ticks;
static pid_t victim_parent;
/* Maximum duration of one wait in a victim on this machine: VICTIM_PATIENCE_US times the slowness
 * factor. */
static uint64_t victim_patience_us = VICTIM_PATIENCE_US;

/* ---- verdicts ------------------------------------------------------------ */

static inline void victim_write_all(int fd, const char *text, size_t length)
{
	while (length > 0) {
		ssize_t done = write(fd, text, length);
		if (done < 0 && errno != EINTR)
			return;
		if (done > 0) {
			text += done;
			length -= (size_t)done;
		}
	}
}

static inline void victim_append_verdict(const char *line, size_t length)
{
	int fd = open(victim_verdict, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	victim_write_all(STDERR_FILENO, line, length);
	if (fd >= 0) {
		victim_write_all(fd, line, length);
		close(fd);
	}
}

__attribute__((noreturn)) static inline void victim_end(const char *kind, int status, const char *format, va_list args)
{
	char line[1024];
	int used = snprintf(line, sizeof(line), "%s: ", kind);
	int more = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, args);
	size_t length = (size_t)used + (size_t)(more > 0 ? more : 0);
	if (length > sizeof(line) - 2)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	victim_append_verdict(line, length);
	_exit(status);
}

/* Fails immediately, from any thread or child. The reason is added to the verdict. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void victim_fail(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	victim_end("FAIL", 1, format, args);
}

/* Ends the victim because this kernel or this user lacks a feature that the victim needs. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void victim_unsupported(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	victim_end("UNSUPPORTED", VICTIM_UNSUPPORTED_STATUS, format, args);
}

#define check(condition, ...)                     \
	do {                                      \
		if (!(condition))                 \
			victim_fail(__VA_ARGS__); \
	} while (0)

/* Evaluates a call that returns a negative number on failure, and fails in this case. */
#define must(call)                                                               \
	({                                                                       \
		__typeof__(call) must_result = (call);                           \
		if (must_result < 0)                                             \
			victim_fail("line %d: %s: %m", __LINE__, #call);         \
		must_result;                                                     \
	})

/* Evaluates a call that returns an error number (pthread_*), and fails if it is not 0. */
#define must_zero(call)                                                                          \
	do {                                                                                     \
		int must_error = (call);                                                         \
		if (must_error != 0)                                                             \
			victim_fail("line %d: %s: %s", __LINE__, #call, strerror(must_error));   \
	} while (0)

/* Checks that a call fails with the errno `expected`. */
#define must_fail_with(call, expected)                                                                 \
	do {                                                                                           \
		errno = 0;                                                                             \
		long must_result = (long)(call);                                                       \
		if (must_result >= 0 || errno != (expected))                                           \
			victim_fail("line %d: %s gave %ld (%m), wanted %s", __LINE__, #call,           \
				    must_result, #expected);                                           \
	} while (0)

/* ---- time ---------------------------------------------------------------- */

static inline uint64_t victim_now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static inline void victim_nap(uint64_t us)
{
	struct timespec span = { (time_t)(us / 1000000u), (long)(us % 1000000u) * 1000 };
	nanosleep(&span, NULL);
}

/* Waits until `condition` holds. Fails after victim_patience_us. */
#define victim_await(condition, ...)                                              \
	do {                                                                      \
		uint64_t await_until = victim_now_us() + victim_patience_us;      \
		while (!(condition)) {                                            \
			check(victim_now_us() < await_until, __VA_ARGS__);        \
			victim_nap(VICTIM_NAP_US);                                \
		}                                                                 \
	} while (0)

/* ---- the loop ------------------------------------------------------------ */

static inline void victim_on_term(int signal)
{
	(void)signal;
	victim_told_to_judge = 1;
}

static inline void victim_tick(void)
{
	victim_ticks++;
}

/* Returns true when SIGTERM has arrived and the loop has run VICTIM_TICKS_AFTER_TERM more rounds. */
static inline bool victim_over(void)
{
	static unsigned long goal;
	if (!victim_told_to_judge)
		return false;
	if (goal == 0)
		goal = victim_ticks + VICTIM_TICKS_AFTER_TERM;
	return victim_ticks >= goal;
}

/* ---- paths, threads, children -------------------------------------------- */

/* Writes the absolute path of a file in the directory of the verdict to `buffer`, and returns
 * `buffer`. */
static inline const char *victim_path(char buffer[PATH_MAX], const char *name)
{
	const char *slash = strrchr(victim_verdict, '/');
	int used = snprintf(buffer, PATH_MAX, "%.*s/%s", (int)(slash - victim_verdict), victim_verdict, name);
	check(used > 0 && used < PATH_MAX, "path of %s is too long", name);
	return buffer;
}

/* Starts a thread that blocks all signals, so that it never handles a signal for the process. */
static inline pthread_t victim_thread(void *(*body)(void *), void *argument)
{
	sigset_t all, before;
	pthread_t thread;
	sigfillset(&all);
	must_zero(pthread_sigmask(SIG_SETMASK, &all, &before));
	must_zero(pthread_create(&thread, NULL, body, argument));
	must_zero(pthread_sigmask(SIG_SETMASK, &before, NULL));
	return thread;
}

/* A gate: a pipe through which a child notifies its parent once that it is set up. Both processes
 * then close the pipe. */
struct victim_gate {
	int ends[2];
};

static inline struct victim_gate victim_gate_make(void)
{
	struct victim_gate gate;
	must(pipe2(gate.ends, O_CLOEXEC));
	return gate;
}

static inline void victim_gate_open(struct victim_gate gate)
{
	check(write(gate.ends[1], "g", 1) == 1, "cannot open the gate: %m");
	close(gate.ends[0]);
	close(gate.ends[1]);
}

static inline void victim_gate_wait(struct victim_gate gate)
{
	char byte;
	close(gate.ends[1]);
	check(read(gate.ends[0], &byte, 1) == 1, "a child ended before it was ready");
	close(gate.ends[0]);
}

static inline pid_t victim_fork(void)
{
	pid_t parent = getpid();
	pid_t child = must(fork());
	if (child == 0)
		victim_parent = parent;
	return child;
}

/* The main function of a child: works until SIGTERM, checks that its parent stays the same,
 * verifies, and exits. */
__attribute__((noreturn)) static inline void victim_child(void (*work)(void), void (*verify)(void))
{
	while (!victim_over()) {
		check(getppid() == victim_parent, "pid %d: parent is %d, was %d", getpid(), getppid(), victim_parent);
		if (work != NULL)
			work();
		victim_tick();
		victim_nap(VICTIM_NAP_US);
	}
	if (verify != NULL)
		verify();
	_exit(0);
}

/* Sends SIGTERM to a child, waits for its end, and checks its exit status. */
static inline void victim_end_child(pid_t child)
{
	int status = 0;
	must(kill(child, SIGTERM));
	pid_t got;
	while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR)
		continue;
	check(got == child, "waitpid(%d) gave %d: %m", child, got);
	check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d ended with status 0x%x", child, status);
}

/* ---- known byte patterns ------------------------------------------------- */

static inline uint64_t victim_mix(uint64_t value)
{
	value += 0x9e3779b97f4a7c15u;
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
	value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
	return value ^ (value >> 31);
}

static inline unsigned char victim_byte(uint64_t seed, uint64_t index)
{
	return (unsigned char)(victim_mix(seed * 0x10001u + index / 8) >> (8 * (index % 8)));
}

static inline void victim_fill(void *at, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i++)
		((volatile unsigned char *)at)[i] = victim_byte(seed, i);
}

/* Returns the offset of the first byte that differs from victim_fill, or -1. */
static inline ssize_t victim_differs(const void *at, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i++)
		if (((const volatile unsigned char *)at)[i] != victim_byte(seed, i))
			return (ssize_t)i;
	return -1;
}

/* Compares a number in a file with the number in memory. After a crash, the file may have a later
 * number. */
static inline bool victim_file_agrees(uint64_t file, uint64_t memory)
{
	return victim_crashed ? file >= memory : file == memory;
}

/* ---- checks for every victim --------------------------------------------- */

static struct {
	pid_t pid, tid, session, group;
	sigset_t mask;
	char name[16];
	char directory[PATH_MAX];
	unsigned char fds[VICTIM_FDS_MAX];
} victim_identity;

static inline void victim_remember_identity(void)
{
	victim_identity.pid = getpid();
	victim_identity.tid = (pid_t)syscall(SYS_gettid);
	victim_identity.session = getsid(0);
	victim_identity.group = getpgrp();
	must_zero(pthread_sigmask(SIG_SETMASK, NULL, &victim_identity.mask));
	must(prctl(PR_GET_NAME, victim_identity.name));
	if (getcwd(victim_identity.directory, PATH_MAX) == NULL)
		victim_identity.directory[0] = 0;
	for (int fd = 0; fd < VICTIM_FDS_MAX; fd++)
		victim_identity.fds[fd] = fcntl(fd, F_GETFD) >= 0;
}

static inline void victim_check_identity(void)
{
	char name[16] = "", directory[PATH_MAX];
	sigset_t mask;
	check(getpid() == victim_identity.pid, "pid is %d, was %d", getpid(), victim_identity.pid);
	check(syscall(SYS_gettid) == victim_identity.tid, "tid changed from %d", victim_identity.tid);
	check(getsid(0) == victim_identity.session, "session is %d, was %d", getsid(0), victim_identity.session);
	check(getpgrp() == victim_identity.group, "process group is %d, was %d", getpgrp(), victim_identity.group);
	must_zero(pthread_sigmask(SIG_SETMASK, NULL, &mask));
	for (int i = 1; i < NSIG; i++)
		check(sigismember(&mask, i) == sigismember(&victim_identity.mask, i), "mask of signal %d changed", i);
	must(prctl(PR_GET_NAME, name));
	check(strcmp(name, victim_identity.name) == 0, "name is %s, was %s", name, victim_identity.name);
	if (getcwd(directory, PATH_MAX) == NULL)
		directory[0] = 0;
	check(strcmp(directory, victim_identity.directory) == 0, "cwd is %s, was %s", directory, victim_identity.directory);
	for (int fd = 0; fd < VICTIM_FDS_MAX; fd++)
		check((fcntl(fd, F_GETFD) >= 0) == victim_identity.fds[fd], "fd %d is %s", fd,
		      victim_identity.fds[fd] ? "gone" : "open and was not");
}

/* ---- main ---------------------------------------------------------------- */

static inline void victim_begin(int argc, char **argv)
{
	struct sigaction judge = { .sa_handler = victim_on_term, .sa_flags = SA_RESTART };
	sigset_t none;
	if (argc < 2 || argv[1][0] != '/' || strlen(argv[1]) >= PATH_MAX) {
		fprintf(stderr, "usage: %s /path/of/verdict\n", argv[0]);
		_exit(2);
	}
	strcpy(victim_verdict, argv[1]);
	victim_sabotaged = getenv("VICTIM_SABOTAGE") != NULL;
	victim_crashed = getenv("VICTIM_CRASHED") != NULL;
	if (getenv("VICTIM_LACKING") != NULL)
		victim_unsupported("told to lack something");
	if (getenv(VICTIM_SLOWNESS) != NULL)
		victim_patience_us *= strtoul(getenv(VICTIM_SLOWNESS), NULL, 10);
	if (getsid(0) != getpid())
		setsid();
	syscall(SYS_close_range, 3u, ~0u, 0u);
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	must(sigprocmask(SIG_SETMASK, &none, NULL));
	must(sigaction(SIGTERM, &judge, NULL));
}

static inline void victim_ready(void)
{
	victim_remember_identity();
	check(write(STDOUT_FILENO, "ready\n", 6) == 6, "cannot say ready: %m");
}

__attribute__((noreturn)) static inline void victim_pass(void)
{
	int fd = open(victim_verdict, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		_exit(1);
	victim_write_all(fd, "PASS\n", 5);
	close(fd);
	_exit(0);
}

static inline int victim_run(int argc, char **argv, const struct victim *victim)
{
	victim_begin(argc, argv);
	victim->setup();
	victim->verify();
	victim_ready();
	while (!victim_over()) {
		if (victim->work != NULL)
			victim->work();
		victim_tick();
		if (!victim->busy)
			victim_nap(VICTIM_NAP_US);
	}
	victim_check_identity();
	if (victim_sabotaged && victim->sabotage != NULL)
		victim->sabotage();
	victim->verify();
	if (victim->finish != NULL)
		victim->finish();
	victim_pass();
}

#define VICTIM_MAIN(victim)                               \
	int main(int argc, char **argv)                   \
	{                                                 \
		return victim_run(argc, argv, &(victim)); \
	}

#endif
