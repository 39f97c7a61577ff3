/* Proves that leases for reading and for writing are restored, with the signal that notifies the
 * lease holder when the file is opened again. */
#include "victim.h"

static int reads, writes;
static char path[PATH_MAX];
static volatile sig_atomic_t told;

static void on_break(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	told = info->si_fd;
}

static void setup(void)
{
	struct sigaction action = { .sa_sigaction = on_break, .sa_flags = SA_SIGINFO | SA_RESTART };
	must(sigaction(SIGRTMIN + 3, &action, NULL));
	close(must(open(victim_path(path, "read"), O_RDWR | O_CREAT | O_CLOEXEC, 0600)));
	reads = must(open(path, O_RDONLY | O_CLOEXEC));
	writes = must(open(victim_path(path, "written"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	if (fcntl(reads, F_SETLEASE, F_RDLCK) != 0)
		victim_unsupported("F_SETLEASE: %m");
	must(fcntl(writes, F_SETLEASE, F_WRLCK));
	must(fcntl(writes, F_SETSIG, SIGRTMIN + 3));
}

static void verify(void)
{
	check(fcntl(reads, F_GETLEASE) == F_RDLCK, "the lease for reading is %d", fcntl(reads, F_GETLEASE));
	check(fcntl(writes, F_GETLEASE) == F_WRLCK, "the lease for writing is %d", fcntl(writes, F_GETLEASE));
	check(fcntl(writes, F_GETSIG) == SIGRTMIN + 3, "the signal is %d", fcntl(writes, F_GETSIG));
	check(told == 0, "somebody has opened the file");
}

static void sabotage(void)
{
	must(fcntl(reads, F_SETLEASE, F_UNLCK));
}

static void finish(void)
{
	must_fail_with(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), EWOULDBLOCK);
	victim_await(told != 0, "nobody was told that the lease is being broken");
	check(told == writes, "told of fd %d", told);
	must(fcntl(writes, F_SETLEASE, F_UNLCK));
	close(must(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)));
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
