/* Has raw sockets: one of a protocol for experiments with a peer, and one for ICMP with a filter. The
 * ICMP socket receives echo requests to the loopback address. */
#include "victim.h"
#include "victim_stream.h"

#include <linux/icmp.h>
#include <netinet/in.h>

#define PROTOCOL 253 /* reserved for experiments */

static int plain, icmp;
static struct sockaddr_in peer = { .sin_family = AF_INET };

static void setup(void)
{
	struct icmp_filter filter = { .data = ~(1u << ICMP_ECHO) };
	plain = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, PROTOCOL);
	if (plain < 0)
		victim_unsupported("raw socket: %m");
	peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 8);
	must(connect(plain, (struct sockaddr *)&peer, sizeof(peer)));
	icmp = must(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
	must(setsockopt(icmp, 255, ICMP_FILTER, &filter, sizeof(filter)));
	must(bind(icmp, (struct sockaddr *)&peer, sizeof(peer)));
}

static void verify(void)
{
	struct icmp_filter filter = { 0 };
	socklen_t size = sizeof(filter);
	check(victim_socket_option(plain, SOL_SOCKET, SO_TYPE) == SOCK_RAW, "it is no raw socket any more");
	check(victim_socket_option(plain, SOL_SOCKET, SO_PROTOCOL) == PROTOCOL, "the protocol changed");
	check(send(plain, "x", 1, 0) == 1, "it is not connected: %m");
	must(getsockopt(icmp, 255, ICMP_FILTER, &filter, &size));
	check(filter.data == ~(1u << ICMP_ECHO), "the filter is %#x", filter.data);
}

static void sabotage(void)
{
	close(plain);
}

static void finish(void)
{
	unsigned char request[8] = { ICMP_ECHO, 0, 0xf7, 0xff };
	unsigned char reply[64];
	check(sendto(icmp, request, sizeof(request), 0, (struct sockaddr *)&peer, sizeof(peer)) == sizeof(request),
	      "send: %m");
	/* An IP header of 20 bytes precedes the request. */
	check(recv(icmp, reply, sizeof(reply), 0) == 28 && reply[20] == ICMP_ECHO, "no echo request: %m");
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
