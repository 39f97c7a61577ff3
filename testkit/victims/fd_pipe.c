/* Proves that pipes are restored with their content. The cases are: a byte stream; packets with
 * their borders; a full pipe; an enlarged pipe; a pipe without a writer (bytes, then end of file);
 * a pipe without a reader (EPIPE); and two pipes between parent and child, with the child blocked
 * in read. */
#include "victim.h"
#include "victim_stream.h"

#include <sys/ioctl.h>

#define QUEUED_BYTES 5000
#define QUEUED_PACKETS 5
#define LEFT_BYTES 100
#define LARGE_BYTES (256 * 1024)

static struct victim_stream stream = { .name = "stream", .seed = 1 };
static struct victim_stream packets = { .name = "packets", .seed = 2 };
static struct victim_stream full = { .name = "full", .seed = 3 };
static struct victim_stream large = { .name = "large", .seed = 4 };
static struct victim_stream left = { .name = "writer gone", .seed = 5 };
static int broken;
static int to_child[2], from_child[2];
static uint64_t asked;
static pid_t child;

static void open_pipe(struct victim_stream *pipe, int flags)
{
	int ends[2];
	must(pipe2(ends, flags));
	pipe->in = ends[0];
	pipe->out = ends[1];
}

static void answer(void)
{
	uint64_t question;
	while (read(to_child[0], &question, sizeof(question)) == sizeof(question)) {
		question = victim_mix(question);
		check(write(from_child[1], &question, sizeof(question)) == sizeof(question), "child: write: %m");
	}
	_exit(0);
}

static void start_child(void)
{
	must(pipe(to_child));
	must(pipe(from_child));
	child = victim_fork();
	if (child == 0) {
		close(to_child[1]);
		close(from_child[0]);
		answer();
	}
	close(to_child[0]);
	close(from_child[1]);
}

static void fill_up(void)
{
	unsigned char byte;
	for (;;) {
		byte = victim_byte(full.seed, full.sent);
		if (write(full.out, &byte, 1) != 1)
			break;
		full.sent++;
	}
	check(errno == EAGAIN, "filling a pipe: %m");
}

static void setup(void)
{
	int ends[2];
	signal(SIGPIPE, SIG_IGN);
	open_pipe(&stream, 0);
	victim_stream_send(&stream, QUEUED_BYTES);
	open_pipe(&packets, O_DIRECT | O_CLOEXEC);
	for (int i = 0; i < QUEUED_PACKETS; i++)
		victim_message_send(&packets);
	open_pipe(&full, O_NONBLOCK);
	fill_up();
	open_pipe(&large, 0);
	must(fcntl(large.out, F_SETPIPE_SZ, LARGE_BYTES));
	victim_stream_send(&large, LARGE_BYTES - 5000);
	open_pipe(&left, 0);
	victim_stream_send(&left, LEFT_BYTES);
	close(left.out);
	must(pipe(ends));
	close(ends[0]);
	broken = ends[1];
	start_child();
}

static void work(void)
{
	uint64_t reply = 0;
	victim_stream_turn(&stream, 100 + (size_t)(victim_ticks % 3000));
	victim_message_turn(&packets);
	asked++;
	check(write(to_child[1], &asked, sizeof(asked)) == sizeof(asked), "write to the child: %m");
	victim_wait_readable(from_child[0], "from child");
	check(read(from_child[0], &reply, sizeof(reply)) == sizeof(reply), "read from the child: %m");
	check(reply == victim_mix(asked), "the child answered wrongly");
}

static void check_queued(const struct victim_stream *pipe)
{
	int queued = 0;
	must(ioctl(pipe->in, FIONREAD, &queued));
	check((uint64_t)queued == pipe->sent - pipe->received, "%s: %d bytes are queued, want %llu", pipe->name, queued,
	      (unsigned long long)(pipe->sent - pipe->received));
}

static void verify(void)
{
	check_queued(&stream);
	check_queued(&full);
	check_queued(&large);
	check_queued(&left);
	check(fcntl(large.in, F_GETPIPE_SZ) == LARGE_BYTES, "size is %d", fcntl(large.in, F_GETPIPE_SZ));
	check((fcntl(packets.out, F_GETFL) & O_DIRECT) != 0, "packet mode is lost");
	check(fcntl(packets.in, F_GETFD) == FD_CLOEXEC && fcntl(stream.in, F_GETFD) == 0, "descriptor flags changed");
	check((fcntl(full.in, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == (O_NONBLOCK | O_RDONLY), "status flags changed");
	check((fcntl(full.out, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == (O_NONBLOCK | O_WRONLY), "status flags changed");
	must_fail_with(write(full.out, "x", 1), EAGAIN);
	must_fail_with(write(broken, "x", 1), EPIPE);
}

static void sabotage(void)
{
	char byte;
	check(read(large.in, &byte, 1) == 1, "sabotage: %m");
}

static void finish(void)
{
	char byte;
	int status = 0;
	victim_stream_drain(&stream);
	victim_stream_must_be_empty(&stream);
	victim_message_drain(&packets);
	victim_stream_must_be_empty(&packets);
	victim_stream_drain(&full);
	victim_stream_drain(&large);
	victim_stream_drain(&left);
	check(read(left.in, &byte, 1) == 0, "no end of file where the writer is gone");
	close(to_child[1]);
	check(waitpid(child, &status, 0) == child && status == 0, "child ended with status 0x%x", status);
	check(read(from_child[0], &byte, 1) == 0, "no end of file after the child");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
