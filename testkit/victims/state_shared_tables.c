/* Has two children. The first shares the descriptor table with its parent (CLONE_FILES). The second
 * shares root directory, working directory and umask (CLONE_FS). A change by a child is a change for the parent. */
#include "victim.h"

#include <linux/kcmp.h>
#include <sched.h>

static pid_t of_files, of_directory;
static int file_orders[2], directory_orders[2], answers[2];

/* Does what the parent orders until the parent closes the pipe. */
static void obey(int orders)
{
	char order;
	int answer = 0;
	if (read(orders, &order, 1) != 1)
		_exit(0);
	if (order == 'o')
		answer = must(open("/dev/null", O_RDONLY | O_CLOEXEC));
	else
		must(chdir("/"));
	check(write(answers[1], &answer, sizeof(answer)) == sizeof(answer), "answer: %m");
}

/* clone(2) without a stack works like fork(2). */
static pid_t child_with(unsigned long flags, int orders)
{
	pid_t child = (pid_t)must(syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0));
	while (child == 0)
		obey(orders);
	return child;
}

static void setup(void)
{
	must(pipe2(file_orders, O_CLOEXEC));
	must(pipe2(directory_orders, O_CLOEXEC));
	must(pipe2(answers, O_CLOEXEC));
	of_files = child_with(CLONE_FILES, file_orders[0]);
	of_directory = child_with(CLONE_FS, directory_orders[0]);
}

static bool is_shared(pid_t child, int table)
{
	return must(syscall(SYS_kcmp, getpid(), child, table, 0, 0)) == 0;
}

static void verify(void)
{
	check(is_shared(of_files, KCMP_FILES), "the descriptor table is not shared");
	check(!is_shared(of_files, KCMP_FS), "the working directory is shared");
	check(is_shared(of_directory, KCMP_FS), "the working directory is not shared");
	check(!is_shared(of_directory, KCMP_FILES), "the descriptor table is shared");
}

static void sabotage(void)
{
	must(unshare(CLONE_FS));
}

static int ask(int orders, char order)
{
	int answer;
	check(write(orders, &order, 1) == 1, "order: %m");
	check(read(answers[0], &answer, sizeof(answer)) == sizeof(answer), "answer: %m");
	return answer;
}

static void finish(void)
{
	char directory[PATH_MAX];
	int opened = ask(file_orders[1], 'o');
	check(fcntl(opened, F_GETFD) == FD_CLOEXEC, "the file of the child is not in the table: %m");
	ask(directory_orders[1], 'c');
	check(getcwd(directory, sizeof(directory)) != NULL && strcmp(directory, "/") == 0, "cwd is %s", directory);
	must(kill(of_files, SIGKILL));
	must(kill(of_directory, SIGKILL));
	must(waitpid(of_files, NULL, 0));
	must(waitpid(of_directory, NULL, 0));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
