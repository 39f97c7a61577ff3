/* Has packet sockets: one that receives all ARP packets, and one that is bound to the loopback device
 * with a filter, a membership and a receive ring. The second one still receives packets. */
#include "victim.h"
#include "victim_stream.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/mman.h>

/* A protocol for local experiments (IEEE 802). */
#define EXPERIMENT 0x88b5

static int any, bound, sender;
static struct sockaddr_ll loopback;

static void setup(void)
{
	struct sock_filter pass = { BPF_RET | BPF_K, 0, 0, 0xffff };
	struct sock_fprog filter = { 1, &pass };
	struct tpacket_req ring = { .tp_block_size = 4096, .tp_block_nr = 2, .tp_frame_size = 2048, .tp_frame_nr = 4 };
	struct packet_mreq member = { .mr_type = PACKET_MR_MULTICAST, .mr_alen = 6, .mr_address = { 1, 0, 0x5e, 0, 0, 7 } };
	any = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ARP));
	if (any < 0)
		victim_unsupported("packet socket: %m");
	loopback.sll_family = AF_PACKET;
	loopback.sll_protocol = htons(EXPERIMENT);
	loopback.sll_ifindex = (int)if_nametoindex("lo");
	loopback.sll_halen = 6;
	if (loopback.sll_ifindex == 0)
		victim_unsupported("no device lo");
	bound = must(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	must(setsockopt(bound, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)));
	must(bind(bound, (struct sockaddr *)&loopback, sizeof(loopback)));
	member.mr_ifindex = loopback.sll_ifindex;
	must(setsockopt(bound, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &member, sizeof(member)));
	sender = must(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	must(setsockopt(any, SOL_PACKET, PACKET_RX_RING, &ring, sizeof(ring)));
}

/* Reports whether the loopback device receives packets to the address of the membership. */
static bool is_member(void)
{
	char line[128];
	bool found = false;
	FILE *table = fopen("/proc/net/dev_mcast", "re");
	check(table != NULL, "dev_mcast: %m");
	while (fgets(line, sizeof(line), table) != NULL)
		found |= strstr(line, " lo ") != NULL && strstr(line, "01005e000007") != NULL;
	fclose(table);
	return found;
}

static void verify(void)
{
	struct sockaddr_ll address = { 0 };
	socklen_t size = sizeof(address);
	check(victim_socket_option(any, SOL_SOCKET, SO_DOMAIN) == AF_PACKET, "it is no packet socket any more");
	must(getsockname(any, (struct sockaddr *)&address, &size));
	check(address.sll_protocol == htons(ETH_P_ARP), "the protocol is %#x", ntohs(address.sll_protocol));
	size = sizeof(address);
	must(getsockname(bound, (struct sockaddr *)&address, &size));
	check(address.sll_ifindex == loopback.sll_ifindex, "the device is %d", address.sll_ifindex);
}

static void work(void)
{
	char text[8];
	ssize_t length;
	check(sendto(sender, "packet", 6, 0, (struct sockaddr *)&loopback, sizeof(loopback)) == 6, "send: %m");
	/* The loopback device delivers a packet twice: as outgoing and as incoming packet. Packets that were
	 * unread at the checkpoint are lost. */
	while ((length = recv(bound, text, sizeof(text), MSG_DONTWAIT)) >= 0)
		check(length >= 6 && memcmp(text, "packet", 6) == 0, "received %zd bytes", length);
	check(errno == EAGAIN, "receive: %m");
}

static void sabotage(void)
{
	close(any);
}

static void finish(void)
{
	struct packet_mreq member = { .mr_type = PACKET_MR_MULTICAST, .mr_alen = 6, .mr_address = { 1, 0, 0x5e, 0, 0, 7 } };
	struct tpacket_req none = { 0 };
	struct sock_filter back[4];
	socklen_t count = 4;
	char text[8];
	must(getsockopt(bound, SOL_SOCKET, SO_GET_FILTER, back, &count));
	check(count == 1 && back[0].k == 0xffff, "the filter has %u instructions", count);
	check(is_member(), "the membership is gone");
	member.mr_ifindex = loopback.sll_ifindex;
	must(setsockopt(bound, SOL_PACKET, PACKET_DROP_MEMBERSHIP, &member, sizeof(member)));
	void *ring = mmap(NULL, 8192, PROT_READ, MAP_SHARED, any, 0);
	check(ring != MAP_FAILED, "the ring is gone: %m");
	munmap(ring, 8192);
	must(setsockopt(any, SOL_PACKET, PACKET_RX_RING, &none, sizeof(none)));
	check(sendto(sender, "packet", 6, 0, (struct sockaddr *)&loopback, sizeof(loopback)) == 6, "send: %m");
	check(recv(bound, text, sizeof(text), 0) >= 6, "no packet: %m");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
