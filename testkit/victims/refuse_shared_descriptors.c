/* Has two children that share one descriptor table (clone(2) with CLONE_FILES and CLONE_PARENT).
 * They are siblings, not parent and child. */
#include "victim.h"

#include <sched.h>
#include <sys/mman.h>

static int number;
static pid_t *sibling;
static pid_t child;

__attribute__((noreturn)) static int sibling_body(void *unused)
{
	(void)unused;
	for (;;)
		pause();
}

/* Creates the sibling, and opens a file that is then in the shared descriptor table. */
static void child_body(struct victim_gate gate)
{
	static unsigned char stack[65536] __attribute__((aligned(16)));
	int file;
	*sibling = must(clone(sibling_body, stack + sizeof(stack), CLONE_FILES | CLONE_PARENT | SIGCHLD, NULL));
	file = must(open("/dev/null", O_RDONLY | O_CLOEXEC));
	must(dup3(file, number, O_CLOEXEC));
	must(close(file));
	victim_gate_open(gate);
	for (;;)
		pause();
}

static bool has_it(pid_t pid)
{
	char path[64], target[64];
	ssize_t length;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, number);
	length = readlink(path, target, sizeof(target));
	return length == 9 && memcmp(target, "/dev/null", 9) == 0;
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	sibling = mmap(NULL, sizeof(*sibling), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(sibling != MAP_FAILED, "mmap: %m");
	number = 40;
	child = victim_fork();
	if (child == 0)
		child_body(gate);
	victim_gate_wait(gate);
}

static void verify(void)
{
	check(kill(child, 0) == 0 && kill(*sibling, 0) == 0, "a child is gone: %m");
	check(has_it(child) && has_it(*sibling), "the file is not in both tables");
}

static void finish(void)
{
	must(kill(*sibling, SIGKILL));
	must(kill(child, SIGKILL));
	must(waitpid(*sibling, NULL, 0));
	must(waitpid(child, NULL, 0));
}

static const struct victim victim = { setup, NULL, verify, finish, finish, false };
VICTIM_MAIN(victim)
