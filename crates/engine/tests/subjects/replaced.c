/* A process with a child. If the child is killed, it is replaced by a new child, which differs only
 * in its pid.
 *
 *   replaced SAID    SAID receives a line `PID ADDRESS` for the child: the address of the counter of
 *                    signals of its timer. A new child writes SAID anew.
 *
 * On SIGTERM, the child exits with 0, and then the parent exits with 0. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t ticks;

static void tick(int signal)
{
	(void)signal;
	ticks++;
}

static void end(int signal)
{
	(void)signal;
	_exit(0);
}

static void child(const char *path)
{
	char line[128];
	timer_t timer;
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN };
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	struct itimerspec spec = { .it_interval = { 0, 1000000 }, .it_value = { 0, 1000000 } };
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &spec, NULL) != 0)
		_exit(1);
	int said = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	int length = snprintf(line, sizeof(line), "%d %lu\n", getpid(), (unsigned long)(uintptr_t)&ticks);
	if (write(said, line, (size_t)length) != length)
		_exit(1);
	close(said);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	struct sigaction action = { .sa_handler = tick };
	sigaction(SIGRTMIN, &action, NULL);
	action.sa_handler = end;
	sigaction(SIGTERM, &action, NULL);
	for (;;) {
		int status;
		if (fork() == 0)
			child(argv[1]);
		if (waitpid(-1, &status, 0) < 0 || WIFEXITED(status))
			return WEXITSTATUS(status);
	}
}
