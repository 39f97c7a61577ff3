/* Proves that half-closed TCP connections are restored. One side has called shutdown(SHUT_WR), with
 * or without unread bytes. The other direction still carries data. */
#include "victim.h"
#include "victim_inet.h"

#define LEFT_BYTES 4000

static struct victim_stream left = { .name = "before the end", .seed = 1 };
static struct victim_stream opposite = { .name = "opposite", .seed = 2 };
static struct victim_stream seen = { .name = "end seen", .seed = 3 };
static int listener;

static void connect_pair(struct victim_stream *shut, struct victim_stream *open_half)
{
	int client = victim_inet_connect(listener);
	int server = victim_inet_accept(listener);
	shut->out = open_half->in = client;
	shut->in = open_half->out = server;
}

static void setup(void)
{
	struct victim_stream unused;
	char byte;
	signal(SIGPIPE, SIG_IGN);
	listener = victim_inet_socket(AF_INET, SOCK_STREAM);
	must(listen(listener, 4));
	connect_pair(&left, &opposite);
	victim_stream_send(&left, LEFT_BYTES);
	must(shutdown(left.out, SHUT_WR));
	victim_stream_send(&opposite, LEFT_BYTES);
	connect_pair(&unused, &seen);
	must(shutdown(unused.out, SHUT_WR));
	check(recv(unused.in, &byte, 1, 0) == 0, "no end of stream");
	seen.in = unused.out;
	seen.out = unused.in;
}

static void work(void)
{
	victim_stream_turn(&opposite, 1 + (size_t)(victim_ticks % 500));
	victim_stream_turn(&seen, 1 + (size_t)(victim_ticks % 300));
}

static void verify(void)
{
	struct tcp_info info;
	socklen_t size = sizeof(info);
	char byte;
	must_fail_with(send(left.out, "x", 1, 0), EPIPE);
	must_fail_with(send(seen.in, "x", 1, 0), EPIPE);
	check(recv(seen.out, &byte, 1, MSG_DONTWAIT) == 0, "the end of the stream is forgotten");
	must(getsockopt(left.out, IPPROTO_TCP, TCP_INFO, &info, &size));
	check(info.tcpi_state == TCP_FIN_WAIT2, "the side that shut is in state %u", info.tcpi_state);
	must(getsockopt(left.in, IPPROTO_TCP, TCP_INFO, &info, &size));
	check(info.tcpi_state == TCP_CLOSE_WAIT, "the other side is in state %u", info.tcpi_state);
}

static void sabotage(void)
{
	must(shutdown(seen.out, SHUT_WR));
}

static void finish(void)
{
	char byte;
	victim_stream_turn(&seen, 100);
	victim_stream_drain(&seen);
	victim_stream_drain(&opposite);
	victim_stream_drain(&left);
	check(recv(left.in, &byte, 1, 0) == 0, "no end of stream after the bytes");
	close(left.in);
	check(recv(left.out, &byte, 1, 0) == 0, "no end of stream from the other side");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
