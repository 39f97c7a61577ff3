/* Proves that descriptors in flight in a Unix socket are restored in order. A passed file that is
 * not received yet shares its offset with the sender's descriptor. A pipe end that exists only in
 * the socket still carries its bytes. */
#include "victim.h"
#include "victim_stream.h"

static int sender, receiver, file, pipe_out;
static struct victim_stream inside = { .name = "pipe in flight", .seed = 9 };

static void pass(int fd, char label)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { &label, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	check(sendmsg(sender, &message, 0) == 1, "sendmsg: %m");
}

static int collect(char expected)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 }, label = 0;
	struct iovec data = { &label, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	int fd = -1;
	check(recvmsg(receiver, &message, MSG_DONTWAIT) == 1 && label == expected, "message is [%c], want [%c]", label,
	      expected);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	check(header != NULL && header->cmsg_type == SCM_RIGHTS, "message [%c] brings no descriptor", label);
	memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return fd;
}

static void setup(void)
{
	char path[PATH_MAX];
	int ends[2];
	must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	sender = ends[0];
	receiver = ends[1];
	file = must(open(victim_path(path, "passed"), O_RDWR | O_CREAT | O_TRUNC, 0600));
	check(write(file, "0123456789", 10) == 10, "write: %m");
	must(lseek(file, 3, SEEK_SET));
	pass(file, 'f');
	must(pipe(ends));
	pipe_out = ends[1];
	inside.out = pipe_out;
	victim_stream_send(&inside, 2000);
	pass(ends[0], 'p');
	close(ends[0]);
}

static void work(void)
{
	if (inside.sent < 30000)
		victim_stream_send(&inside, 10);
}

static void verify(void)
{
	check(lseek(file, 0, SEEK_CUR) == 3, "offset is %lld", (long long)lseek(file, 0, SEEK_CUR));
	victim_wait_readable(receiver, "receiver");
}

static void sabotage(void)
{
	close(collect('f'));
}

static void finish(void)
{
	int passed = collect('f');
	inside.in = collect('p');
	check(passed != file, "received under the sender's number");
	must(lseek(file, 6, SEEK_SET));
	check(lseek(passed, 0, SEEK_CUR) == 6, "the passed file does not share its offset");
	victim_stream_drain(&inside);
	close(pipe_out);
	char byte;
	check(read(inside.in, &byte, 1) == 0, "no end of file behind the passed pipe");
	must_fail_with(recv(receiver, &byte, 1, MSG_DONTWAIT), EAGAIN);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
