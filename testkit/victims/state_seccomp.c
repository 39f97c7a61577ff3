/* Proves that seccomp filters are restored: two filters of the process, and a third filter of one
 * thread. Each filter answers its own system call with its own error number. */
#include "victim.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

/* Unused system calls, and the error numbers with which the filters answer them. */
#define FIRST_CALL SYS_ustat
#define FIRST_ERROR 61
#define SECOND_CALL SYS_sysfs
#define SECOND_ERROR 62
#define THREAD_CALL SYS_lookup_dcookie
#define THREAD_ERROR 63

static pthread_t thread;
static volatile unsigned long rounds;
static volatile int leave;
static int thread_call_error;

static void install(long call, int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };
	must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

static int error_of(long call)
{
	errno = 0;
	return syscall(call, 0, 0, 0) < 0 ? errno : 0;
}

static void check_process_filters(const char *who)
{
	check(error_of(FIRST_CALL) == FIRST_ERROR, "%s: the first filter answers %d", who, error_of(FIRST_CALL));
	check(error_of(SECOND_CALL) == SECOND_ERROR, "%s: the second filter answers %d", who, error_of(SECOND_CALL));
}

static void *body(void *unused)
{
	install(THREAD_CALL, THREAD_ERROR);
	while (!leave) {
		check_process_filters("thread");
		check(error_of(THREAD_CALL) == THREAD_ERROR, "the filter of the thread answers %d", error_of(THREAD_CALL));
		check(prctl(PR_GET_SECCOMP) == SECCOMP_MODE_FILTER, "seccomp mode changed");
		rounds++;
		victim_nap(VICTIM_NAP_US);
	}
	return unused;
}

static void setup(void)
{
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	install(FIRST_CALL, FIRST_ERROR);
	install(SECOND_CALL, SECOND_ERROR);
	thread_call_error = error_of(THREAD_CALL);
	thread = victim_thread(body, NULL);
	victim_await(rounds > 0, "the thread does not start");
}

static void work(void)
{
	check_process_filters("process");
	check(error_of(THREAD_CALL) == thread_call_error, "the filter of the thread answers the process");
}

static void verify(void)
{
	char text[8192] = "";
	int status = must(open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC));
	must(read(status, text, sizeof(text) - 1));
	close(status);
	const char *filters = strstr(text, "Seccomp_filters:");
	check(filters != NULL && strtol(filters + 16, NULL, 10) == 2, "the number of filters changed");
	work();
	unsigned long before = rounds;
	victim_await(rounds > before + 1, "the thread stands still");
}

/* A filter cannot be removed, so the damage is an additional filter. */
static void sabotage(void)
{
	install(THREAD_CALL, THREAD_ERROR + 1);
}

static void finish(void)
{
	leave = 1;
	must_zero(pthread_join(thread, NULL));
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
