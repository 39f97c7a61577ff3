/* Continuously changes files, in two processes with two threads each.
 *
 * Usage: watched plain|filtered FILE. The program writes the number of its rounds to FILE. If a
 * change fails, it exits with 1. In a round, each thread opens a file for writing, and creates,
 * renames and removes a directory. With `filtered`, the process has a seccomp filter with which
 * ustat(2) fails with error 61. Its second thread has an additional filter with which sysfs(2)
 * fails with error 62. Each round checks these errors. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int filtered, said, is_child;
static volatile long rounds;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	_exit(1);
}

static void install(long call, int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
		fail("install a filter");
}

static void expect(long call, int error)
{
	errno = 0;
	if (syscall(call, 0, 0, 0) >= 0 || (error && errno != error) || (!error && errno > 60))
		fail("a filter answers otherwise");
}

static void must(int result, int allowed, const char *what)
{
	if (result < 0 && errno != allowed)
		fail(what);
}

/* After a restore, a directory can already exist or be missing, because the file system has later
 * changes. */
static void change(const char *name)
{
	char renamed[64];
	snprintf(renamed, sizeof(renamed), "%s.renamed", name);
	int file = open("kept", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	must(file, 0, "open");
	close(file);
	must(mkdir(name, 0700), EEXIST, "mkdir");
	must(rename(name, renamed), ENOENT, "rename");
	must(rmdir(renamed), ENOENT, "rmdir");
}

static void round_of(int thread)
{
	char name[32];
	snprintf(name, sizeof(name), "changed-%d-%d", is_child, thread);
	change(name);
	if (filtered) {
		expect(SYS_ustat, 61);
		expect(SYS_sysfs, thread ? 62 : 0);
	}
	struct timespec nap = { .tv_nsec = 200000 };
	nanosleep(&nap, NULL);
}

static void *body(void *unused)
{
	if (filtered)
		install(SYS_sysfs, 62);
	for (;;)
		round_of(1);
	return unused;
}

int main(int count, char **arguments)
{
	if (count < 3)
		return 2;
	filtered = !strcmp(arguments[1], "filtered");
	said = open(arguments[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (said < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		fail("begin");
	if (filtered)
		install(SYS_ustat, 61);
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	is_child = child == 0;
	pthread_t thread;
	if (pthread_create(&thread, NULL, body, NULL))
		fail("create a thread");
	for (;;) {
		char text[32];
		round_of(0);
		snprintf(text, sizeof(text), "%31ld", ++rounds);
		if (!is_child && pwrite(said, text, 31, 0) != 31)
			fail("say");
	}
}
