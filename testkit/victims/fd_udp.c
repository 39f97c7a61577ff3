/* Proves that UDP sockets are restored: address, connected peer, options, and the queued datagrams
 * with their borders and senders. */
#include "victim.h"
#include "victim_inet.h"

#include <netinet/ip.h>

#define WAITING 4

struct socket_pair {
	const char *name;
	int family;
	struct victim_stream stream; /* from a connected socket to a bound socket */
	struct sockaddr_storage bound, peer;
};

static struct socket_pair pairs[] = {
	{ .name = "v4", .family = AF_INET, .stream.seed = 1 },
	{ .name = "v6", .family = AF_INET6, .stream.seed = 2 },
};
static size_t families = 2;

/* The IPv4 options of each datagram: three no-operations, and the end of the list. */
static const unsigned char ip_options[4] = { IPOPT_NOP, IPOPT_NOP, IPOPT_NOP, IPOPT_END };

static void setup(void)
{
	families = victim_has_ipv6() ? 2 : 1;
	for (size_t i = 0; i < families; i++) {
		struct socket_pair *pair = &pairs[i];
		pair->stream.name = pair->name;
		pair->stream.in = victim_inet_socket(pair->family, SOCK_DGRAM);
		pair->stream.out = victim_inet_socket(pair->family, SOCK_DGRAM | SOCK_CLOEXEC);
		socklen_t size = victim_own_address(pair->stream.in, &pair->bound);
		must(connect(pair->stream.out, (struct sockaddr *)&pair->bound, size));
		victim_own_address(pair->stream.out, &pair->peer);
		victim_set_socket_option(pair->stream.out, SOL_SOCKET, SO_BROADCAST, 1);
		victim_set_socket_option(pair->stream.in, SOL_SOCKET, SO_RCVBUF, 100000);
		for (int n = 0; n < WAITING; n++)
			victim_message_send(&pair->stream);
	}
	victim_set_socket_option(pairs[0].stream.out, IPPROTO_IP, IP_TTL, 33);
	victim_set_socket_option(pairs[0].stream.in, IPPROTO_IP, IP_PKTINFO, 1);
	must(setsockopt(pairs[0].stream.out, IPPROTO_IP, IP_OPTIONS, ip_options, sizeof(ip_options)));
}

static void work(void)
{
	for (size_t i = 0; i < families; i++)
		victim_message_turn(&pairs[i].stream);
}

static void verify(void)
{
	for (size_t i = 0; i < families; i++) {
		const struct socket_pair *pair = &pairs[i];
		struct sockaddr_storage now;
		socklen_t size = victim_own_address(pair->stream.in, &now);
		check(memcmp(&now, &pair->bound, size) == 0, "%s: bound elsewhere", pair->name);
		size = victim_peer_address(pair->stream.out, &now);
		check(memcmp(&now, &pair->bound, size) == 0, "%s: connected elsewhere", pair->name);
		size = victim_own_address(pair->stream.out, &now);
		check(memcmp(&now, &pair->peer, size) == 0, "%s: local address changed", pair->name);
		check(victim_socket_option(pair->stream.out, SOL_SOCKET, SO_BROADCAST) == 1, "%s: SO_BROADCAST", pair->name);
		check(victim_socket_option(pair->stream.in, SOL_SOCKET, SO_RCVBUF) == 200000, "%s: SO_RCVBUF", pair->name);
		check(fcntl(pair->stream.out, F_GETFD) == FD_CLOEXEC && fcntl(pair->stream.in, F_GETFD) == 0,
		      "%s: close-on-exec changed", pair->name);
	}
	check(victim_socket_option(pairs[0].stream.out, IPPROTO_IP, IP_TTL) == 33, "IP_TTL");
	check(victim_socket_option(pairs[0].stream.in, IPPROTO_IP, IP_PKTINFO) == 1, "IP_PKTINFO");
	unsigned char options[40];
	socklen_t size = sizeof(options);
	must(getsockopt(pairs[0].stream.out, IPPROTO_IP, IP_OPTIONS, options, &size));
	check(size == sizeof(ip_options) && memcmp(options, ip_options, size) == 0, "IP_OPTIONS: %u bytes", (unsigned)size);
}

static void sabotage(void)
{
	char bytes[8];
	must(recv(pairs[0].stream.in, bytes, sizeof(bytes), 0));
}

static void finish(void)
{
	for (size_t i = 0; i < families; i++) {
		struct socket_pair *pair = &pairs[i];
		struct sockaddr_storage from = { 0 };
		socklen_t size = sizeof(from);
		unsigned char bytes[4];
		victim_wait_readable(pair->stream.in, pair->name);
		must(recvfrom(pair->stream.in, bytes, sizeof(bytes), MSG_PEEK, (struct sockaddr *)&from, &size));
		check(memcmp(&from, &pair->peer, size) == 0, "%s: a waiting datagram has another sender", pair->name);
		victim_message_drain(&pair->stream);
		victim_stream_must_be_empty(&pair->stream);
	}
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
