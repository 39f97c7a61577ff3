/* Proves that Unix socket pairs are restored: stream, datagram and sequenced packet, with data
 * queued in both directions, message borders and options. The other cases are: a direction that is
 * shut down; a closed peer (bytes, then end of file); and a pair between parent and child, with the
 * child blocked in recv. */
#include "victim.h"
#include "victim_stream.h"

#include <sys/ioctl.h>

#define QUEUED_BYTES 6000
#define QUEUED_MESSAGES 4
#define LEFT_BYTES 333
#define SEND_BUFFER 65536

struct pair {
	struct victim_stream there, back;
	int type, flags;
};

static struct pair pairs[] = {
	{ { .name = "stream there", .seed = 1 }, { .name = "stream back", .seed = 2 }, SOCK_STREAM, SOCK_CLOEXEC },
	{ { .name = "datagram there", .seed = 3 }, { .name = "datagram back", .seed = 4 }, SOCK_DGRAM, 0 },
	{ { .name = "packet there", .seed = 5 }, { .name = "packet back", .seed = 6 }, SOCK_SEQPACKET, SOCK_NONBLOCK },
};
#define PAIRS (sizeof(pairs) / sizeof(pairs[0]))

static struct victim_stream halved = { .name = "half shut", .seed = 7 };
static struct victim_stream orphaned = { .name = "peer closed", .seed = 8 };
static int own_end;
static uint64_t asked;
static pid_t child;

static void connect_streams(struct victim_stream *there, struct victim_stream *back, int type)
{
	int ends[2];
	must(socketpair(AF_UNIX, type, 0, ends));
	there->out = back->in = ends[0];
	there->in = back->out = ends[1];
}

static void start_child(void)
{
	int ends[2];
	uint64_t question;
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	child = victim_fork();
	if (child != 0) {
		own_end = ends[0];
		close(ends[1]);
		return;
	}
	close(ends[0]);
	while (recv(ends[1], &question, sizeof(question), 0) == sizeof(question)) {
		question = victim_mix(question);
		check(send(ends[1], &question, sizeof(question), 0) == sizeof(question), "child: send: %m");
	}
	_exit(0);
}

static void setup(void)
{
	struct victim_stream unused;
	for (size_t i = 0; i < PAIRS; i++) {
		struct pair *pair = &pairs[i];
		connect_streams(&pair->there, &pair->back, pair->type | pair->flags);
		for (int n = 0; pair->type != SOCK_STREAM && n < QUEUED_MESSAGES; n++) {
			victim_message_send(&pair->there);
			victim_message_send(&pair->back);
		}
	}
	victim_stream_send(&pairs[0].there, QUEUED_BYTES);
	victim_stream_send(&pairs[0].back, QUEUED_BYTES / 2);
	victim_set_socket_option(pairs[2].there.out, SOL_SOCKET, SO_SNDBUF, SEND_BUFFER);
	connect_streams(&halved, &unused, SOCK_STREAM);
	victim_stream_send(&halved, LEFT_BYTES);
	must(shutdown(halved.out, SHUT_WR));
	/* No message is queued at this socket, so no message has credentials. fd_unix_credentials.c
	 * tests credentials. */
	victim_set_socket_option(halved.out, SOL_SOCKET, SO_PASSCRED, 1);
	connect_streams(&orphaned, &unused, SOCK_STREAM);
	victim_stream_send(&orphaned, LEFT_BYTES);
	close(orphaned.out);
	signal(SIGPIPE, SIG_IGN);
	start_child();
}

static void work(void)
{
	uint64_t reply = 0;
	victim_stream_turn(&pairs[0].there, 1 + (size_t)(victim_ticks % 900));
	victim_stream_turn(&pairs[0].back, 1 + (size_t)(victim_ticks % 700));
	for (size_t i = 1; i < PAIRS; i++) {
		victim_message_turn(&pairs[i].there);
		victim_message_turn(&pairs[i].back);
	}
	asked++;
	check(send(own_end, &asked, sizeof(asked), 0) == sizeof(asked), "send to the child: %m");
	check(recv(own_end, &reply, sizeof(reply), MSG_WAITALL) == sizeof(reply), "recv from the child: %m");
	check(reply == victim_mix(asked), "the child answered wrongly");
}

static void verify(void)
{
	int queued = 0;
	struct ucred peer;
	socklen_t size = sizeof(peer);
	for (size_t i = 0; i < PAIRS; i++) {
		const struct pair *pair = &pairs[i];
		const char *name = pair->there.name;
		check(victim_socket_option(pair->there.out, SOL_SOCKET, SO_TYPE) == pair->type, "%s: type changed", name);
		check(fcntl(pair->there.in, F_GETFD) == (pair->flags & SOCK_CLOEXEC ? FD_CLOEXEC : 0),
		      "%s: close-on-exec changed", name);
		check((fcntl(pair->there.in, F_GETFL) & O_NONBLOCK) == (pair->flags & SOCK_NONBLOCK),
		      "%s: status flags changed", name);
	}
	must(ioctl(pairs[0].there.in, FIONREAD, &queued));
	check((uint64_t)queued == pairs[0].there.sent - pairs[0].there.received, "%d bytes are queued", queued);
	check(victim_socket_option(halved.out, SOL_SOCKET, SO_PASSCRED) == 1, "SO_PASSCRED is lost");
	check(victim_socket_option(halved.in, SOL_SOCKET, SO_PASSCRED) == 0, "SO_PASSCRED appeared");
	check(victim_socket_option(pairs[2].there.out, SOL_SOCKET, SO_SNDBUF) == 2 * SEND_BUFFER, "SO_SNDBUF is lost");
	check(getsockopt(own_end, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == getpid(),
	      "peer is pid %d", peer.pid);
	must_fail_with(send(halved.out, "x", 1, 0), EPIPE);
	must_fail_with(send(orphaned.in, "x", 1, 0), EPIPE);
	/* The other direction of the half-shut pair stays open. */
	check(send(halved.in, "x", 1, 0) == 1 && recv(halved.out, &queued, 1, 0) == 1, "the open half is shut");
}

static void sabotage(void)
{
	char message[VICTIM_MESSAGE_MAX];
	must(recv(pairs[2].back.in, message, 1, 0));
}

static void finish(void)
{
	char byte;
	int status = 0;
	victim_stream_drain(&pairs[0].there);
	victim_stream_drain(&pairs[0].back);
	for (size_t i = 0; i < PAIRS; i++) {
		if (i > 0) {
			victim_message_drain(&pairs[i].there);
			victim_message_drain(&pairs[i].back);
		}
		victim_stream_must_be_empty(&pairs[i].there);
		victim_stream_must_be_empty(&pairs[i].back);
	}
	victim_stream_drain(&halved);
	check(recv(halved.in, &byte, 1, 0) == 0, "no end of file behind a shut half");
	victim_stream_drain(&orphaned);
	check(recv(orphaned.in, &byte, 1, 0) == 0, "no end of file behind a closed peer");
	close(own_end);
	check(waitpid(child, &status, 0) == child && status == 0, "child ended with status 0x%x", status);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
