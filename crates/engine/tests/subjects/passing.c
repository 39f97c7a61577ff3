/* Repeatedly has an object for a short time. The object cannot be checkpointed, or is being
 * removed.
 *
 * Usage: passing stat|objects|children|pipes|programs|closes|grows|busy|held. The program runs
 * until it is killed. If a check fails, it exits with 1.
 *
 * stat: opens, reads and closes /proc/1/stat, about sixteen times per millisecond.
 * objects: maps, moves and unmaps memory files and shared memory at full speed.
 * children: forks children that exit immediately, or after half a millisecond.
 * pipes: the same as children, and only the child has the read end of a pipe.
 * programs: executes itself after vfork. The child shares the memory of its parent for up to two milliseconds,
 *     and then has its own memory for three milliseconds (as `brief`).
 * closes: listens at a port, locks a file and writes a program file. Closes these descriptors after less than
 *     a millisecond, repeats these steps at once, and executes the program. A step fails while another process
 *     has a duplicate of a descriptor. On a busy machine, `undying` can be delayed while it has duplicates, so
 *     failures in successive rounds count as one, up to 1,000 rounds. Ten failures are allowed for the first
 *     scan of the program by `undying`, and one more for each hundred rounds.
 * grows: has 64 MiB of memory. Creates a mapping, grows it in place, moves it as a whole, and unmaps it.
 * busy: has /proc/1/stat open during three of seven milliseconds, and continuously writes to its memory.
 * held: opens /proc/1/stat on SIGUSR1, and closes it on the next SIGUSR1. The file `held` exists meanwhile. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define OBJECTS 6
#define CHILDREN 3

static void nap(long microseconds)
{
	struct timespec time = { .tv_nsec = microseconds * 1000 };
	nanosleep(&time, NULL);
}

static void require(int is_well)
{
	if (!is_well)
		_exit(1);
}

static void look_at_itself(void)
{
	char text[1024];
	int fd = open("/proc/1/stat", O_RDONLY);
	require(fd >= 0 && read(fd, text, sizeof(text)) > 0 && !close(fd));
	nap(10);
}

static volatile unsigned pages[512][1024];

static void write_memory(unsigned milliseconds)
{
	static unsigned serial;
	for (unsigned turn = 0; turn < 4 * milliseconds; turn++) {
		for (unsigned i = 0; i < 64; i++, serial++)
			pages[serial * 31 % 512][serial % 1024] = serial;
		nap(200);
	}
}

static void be_busy(void)
{
	int fd = open("/proc/1/stat", O_RDONLY);
	require(fd >= 0);
	write_memory(3);
	require(!close(fd));
	write_memory(4);
}

static volatile sig_atomic_t is_held;

static void hold(int number)
{
	(void)number;
	is_held = !is_held;
}

static void hold_when_told(void)
{
	static int fd = -1;
	if (is_held && fd < 0) {
		fd = open("/proc/1/stat", O_RDONLY);
		int sign = open("held", O_CREAT | O_WRONLY, 0600);
		require(fd >= 0 && sign >= 0 && !close(sign));
	}
	if (!is_held && fd >= 0) {
		require(!close(fd) && !unlink("held"));
		fd = -1;
	}
	write_memory(1);
}

static void change_objects(unsigned round)
{
	static struct {
		char *start;
		int fd;
		char tag;
	} objects[OBJECTS];
	size_t bytes = 4 * PAGE, slot = round * 7919 % OBJECTS;
	char **start = &objects[slot].start;
	if (!*start) {
		int is_file = round & 1;
		objects[slot].fd = is_file ? memfd_create("passing", MFD_CLOEXEC) : -1;
		require(!is_file || !ftruncate(objects[slot].fd, (off_t)bytes));
		int flags = MAP_SHARED | (is_file ? 0 : MAP_ANONYMOUS);
		*start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, objects[slot].fd, 0);
		require(*start != MAP_FAILED);
		memset(*start, objects[slot].tag = (char)round, bytes);
		return;
	}
	for (size_t at = 0; at < bytes; at += PAGE / 2)
		require((*start)[at] == objects[slot].tag);
	if (round % 5 == 0) {
		char *to = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		*start = mremap(*start, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		require(*start == to);
		return;
	}
	require(!munmap(*start, bytes) && (objects[slot].fd < 0 || !close(objects[slot].fd)));
	*start = NULL;
}

/* Starts a child and reaps an earlier one. Every third child runs for half a millisecond. With
 * `with_pipes`, the parent has the write end of a pipe for each child, and only the child has the
 * read end. */
static void have_children(unsigned round, int with_pipes)
{
	static struct {
		pid_t pid;
		int end;
	} children[CHILDREN];
	size_t slot = round % CHILDREN;
	if (children[slot].pid) {
		int status;
		require(waitpid(children[slot].pid, &status, 0) == children[slot].pid && !status);
		require(!with_pipes || !close(children[slot].end));
	}
	int ends[2] = { -1, -1 };
	require(!with_pipes || !pipe2(ends, O_CLOEXEC));
	children[slot].pid = fork();
	require(children[slot].pid >= 0);
	if (!children[slot].pid) {
		if (round % 3 == 0)
			nap(500);
		_exit(0);
	}
	require(!with_pipes || !close(ends[0]));
	children[slot].end = ends[1];
	nap(20);
}

static void start_program(unsigned round)
{
	int status;
	pid_t child = vfork();
	if (!child) {
		nap(round * 997 % 2000);
		execl("/proc/self/exe", "passing", "brief", NULL);
		_exit(2);
	}
	require(child > 0 && waitpid(child, &status, 0) == child && !status);
}

static unsigned failures, failed_rounds;

/* Returns 1 if the call has failed because another process still has a duplicate of the descriptor. */
static unsigned is_taken(int is_well, int why)
{
	require(is_well || errno == why);
	return !is_well;
}

static void close_and_take_again(unsigned round)
{
	static struct sockaddr_in address = { .sin_family = AF_INET };
	static char code[1 << 16];
	static ssize_t bytes;
	socklen_t length = sizeof(address);
	if (!bytes) {
		int self = open("/bin/true", O_RDONLY);
		require(self >= 0 && (bytes = read(self, code, sizeof(code))) > 0 && !close(self));
	}
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
	require(listener >= 0 && !setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)));
	int is_bound = !bind(listener, (struct sockaddr *)&address, sizeof(address)) && !listen(listener, 1);
	unsigned taken = is_taken(is_bound, EADDRINUSE);
	/* Another program can have taken the port. */
	if (!is_bound)
		address.sin_port = 0;
	require(!is_bound || !getsockname(listener, (struct sockaddr *)&address, &length));
	int locked = open("locked", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	require(locked >= 0);
	taken += is_taken(!flock(locked, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	int program = open("written", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
	taken += is_taken(program >= 0, ETXTBSY);
	require(program < 0 || write(program, code, (size_t)bytes) == bytes);
	nap(100 + round * 997 % 900);
	require(!close(listener) && !close(locked) && (program < 0 || !close(program)));
	if (round % 8 == 0) {
		pid_t child;
		char *arguments[] = { "written", NULL }, *none[] = { NULL };
		int why = posix_spawn(&child, "./written", NULL, NULL, arguments, none);
		taken += is_taken(!(errno = why), ETXTBSY);
		require(why || waitpid(child, NULL, 0) == child);
	}
	failures += taken && !failed_rounds;
	failed_rounds = taken ? failed_rounds + 1 : 0;
	require(failed_rounds <= 1000 && failures <= 10 + round / 100);
}

/* Grows a mapping in small steps. The kernel must extend the same mapping, so that one mremap can
 * move all of it. */
static void grow_and_move(void)
{
	enum { BALLAST = 64 << 20, LEAST = 4 * PAGE, MOST = 16 * PAGE };
	static char *first, *second;
	if (!first) {
		char *ballast = mmap(NULL, BALLAST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		require(ballast != MAP_FAILED);
		memset(ballast, 1, BALLAST);
		first = mmap(NULL, 4 * MOST, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		require(first != MAP_FAILED && !munmap(first, 4 * MOST));
		first += MOST, second = first + 2 * MOST;
	}
	char *area = mmap(first, LEAST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	require(area == first);
	*area = 1;
	for (size_t size = LEAST; size < MOST; size += LEAST) {
		require(mremap(first, size, size + LEAST, 0) == first);
		first[size] = 1;
		nap(100);
	}
	require(mremap(first, MOST, MOST, MREMAP_MAYMOVE | MREMAP_FIXED, second) == second);
	for (size_t at = 0; at < MOST; at += LEAST)
		require(second[at] == 1);
	require(!munmap(second, MOST));
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	if (!strcmp(argv[1], "brief")) {
		nap(3000);
		return 0;
	}
	struct sigaction action = { .sa_handler = hold, .sa_flags = SA_RESTART };
	require(!sigaction(SIGUSR1, &action, NULL));
	for (unsigned round = 1;; round++) {
		if (!strcmp(argv[1], "stat"))
			look_at_itself();
		else if (!strcmp(argv[1], "busy"))
			be_busy();
		else if (!strcmp(argv[1], "held"))
			hold_when_told();
		else if (!strcmp(argv[1], "objects"))
			change_objects(round);
		else if (!strcmp(argv[1], "closes"))
			close_and_take_again(round);
		else if (!strcmp(argv[1], "grows"))
			grow_and_move();
		else if (!strcmp(argv[1], "programs"))
			start_program(round);
		else
			have_children(round, !strcmp(argv[1], "pipes"));
	}
}
