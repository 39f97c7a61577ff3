/* Proves that locks of open file descriptions (flock(2) and ranges) are restored for exactly these
 * descriptions. The holders are the program, only a child, and a descriptor in flight in a socket.
 * One lock and one close-on-exec flag change continuously, which detects a checkpoint that reads
 * them before the program is stopped. */
#include "victim.h"
#include "victim_stream.h"

#include <sys/file.h>

#define RANGE_START 5
#define RANGE_BYTES 5

static int plain, second, childs, toggled, ranges, ends[2];
static pid_t child;
static volatile bool held;

static int open_beside(const char *name)
{
	char path[PATH_MAX];
	return must(open(victim_path(path, name), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
}

static void take_range(int fd, short type, off_t start, off_t length)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
	must(fcntl(fd, F_OFD_SETLK, &lock));
}

static void send_locked(void)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 'l';
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int fd = open_beside("travelling");
	must(flock(fd, LOCK_EX));
	take_range(fd, F_WRLCK, 0, 0);
	*header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	check(sendmsg(ends[0], &message, 0) == 1, "sendmsg: %m");
	close(fd);
}

static void setup(void)
{
	struct victim_gate gate = victim_gate_make();
	plain = open_beside("plain");
	second = must(fcntl(plain, F_DUPFD, 0));
	must(flock(plain, LOCK_EX));
	toggled = open_beside("toggled");
	ranges = open_beside("ranges");
	take_range(ranges, F_WRLCK, RANGE_START, RANGE_BYTES);
	take_range(ranges, F_RDLCK, 100, 0);
	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	send_locked();
	childs = open_beside("childs");
	must(flock(childs, LOCK_SH));
	child = victim_fork();
	if (child == 0) {
		victim_gate_open(gate);
		victim_child(NULL, NULL);
	}
	close(childs);
	victim_gate_wait(gate);
}

static void work(void)
{
	must(flock(toggled, held ? LOCK_UN : LOCK_EX));
	must(fcntl(second, F_SETFD, held ? 0 : FD_CLOEXEC));
	held = !held;
}

/* Returns which flock(2) another open file description can take now: LOCK_EX, LOCK_SH, or 0 for
 * none. */
static int left_of(const char *name)
{
	int other = open_beside(name), left = 0;
	if (flock(other, LOCK_EX | LOCK_NB) == 0)
		left = LOCK_EX;
	else if (flock(other, LOCK_SH | LOCK_NB) == 0)
		left = LOCK_SH;
	close(other);
	return left;
}

static short in_the_way(const char *name, off_t start, off_t length)
{
	struct flock found = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
	int other = open_beside(name);
	must(fcntl(other, F_OFD_GETLK, &found));
	close(other);
	return found.l_type;
}

/* The kernel reports the pid that took a lock. After a restore, this must be a process that has the
 * descriptor. */
static void check_owner(int fd)
{
	char path[64], text[1024] = "";
	int owner = 0;
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	int info = must(open(path, O_RDONLY | O_CLOEXEC));
	must(read(info, text, sizeof(text) - 1));
	close(info);
	const char *line = strstr(text, "FLOCK");
	check(line != NULL && sscanf(line, "FLOCK ADVISORY WRITE %d", &owner) == 1 && owner == getpid(),
	      "owner of the lock is %d in [%s]", owner, text);
}

static void verify(void)
{
	check(left_of("plain") == 0, "the lock of plain is lost");
	check(left_of("childs") == LOCK_SH, "the child's lock leaves %d", left_of("childs"));
	check(left_of("travelling") == 0, "the lock of the descriptor on its way is lost");
	check(left_of("toggled") == (held ? 0 : LOCK_EX), "held %d, and %d is left", held, left_of("toggled"));
	check(left_of("ranges") == LOCK_EX, "a range became a lock of the whole file");
	check(in_the_way("ranges", RANGE_START, 1) == F_WRLCK, "the range for writing is lost");
	check(in_the_way("ranges", RANGE_START + RANGE_BYTES, 1) == F_UNLCK, "the range is too long");
	check(in_the_way("ranges", 1u << 20, 1) == F_RDLCK, "the range to the end is lost");
	check(in_the_way("travelling", 7, 1) == F_WRLCK, "the range of the descriptor on its way is lost");
	check(fcntl(plain, F_GETFD) == FD_CLOEXEC, "close-on-exec is lost");
	check(fcntl(second, F_GETFD) == (held ? FD_CLOEXEC : 0), "held %d, close-on-exec of the other is %d", held,
	      fcntl(second, F_GETFD));
	check_owner(plain);
}

static void sabotage(void)
{
	must(flock(second, LOCK_UN));
}

static void finish(void)
{
	/* The kernel releases a lock with the last descriptor of its description, and not before. */
	close(plain);
	check(left_of("plain") == 0, "the lock went with one of two descriptors");
	victim_end_child(child);
	/* During its first scan of the program, a guardian has duplicates of all descriptors, so
	 * the lock can be released a little later (docs/limits.md). */
	victim_await(left_of("childs") == LOCK_EX, "the child's lock outlives it");
	close(ends[0]);
	close(ends[1]);
	victim_await(left_of("travelling") == LOCK_EX, "the lock outlives the socket");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
