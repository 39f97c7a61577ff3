/* Has a packet socket that is not bound to a device. */
#include "victim.h"
#include "victim_stream.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>

static int held;

static void setup(void)
{
	held = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ARP));
	if (held < 0)
		victim_unsupported("packet socket: %m");
}

static void verify(void)
{
	check(victim_socket_option(held, SOL_SOCKET, SO_DOMAIN) == AF_PACKET, "it is no packet socket any more");
	struct sockaddr_ll address = { 0 };
	socklen_t size = sizeof(address);
	must(getsockname(held, (struct sockaddr *)&address, &size));
	check(address.sll_protocol == htons(ETH_P_ARP), "the protocol is %#x", ntohs(address.sll_protocol));
}

static void sabotage(void)
{
	close(held);
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
