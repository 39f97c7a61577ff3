/* Maps the receive ring of a packet socket. */
#include "victim.h"

#include <linux/if_packet.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define BYTES 8192u

static int packets;
static unsigned char *ring;

static void setup(void)
{
	struct tpacket_req request = { .tp_block_size = 4096, .tp_block_nr = 2, .tp_frame_size = 2048, .tp_frame_nr = 4 };
	packets = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (packets < 0)
		victim_unsupported("packet socket: %m");
	must(setsockopt(packets, SOL_PACKET, PACKET_RX_RING, &request, sizeof(request)));
	ring = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, packets, 0);
	check(ring != MAP_FAILED, "mmap: %m");
}

static void verify(void)
{
	struct tpacket_req none = { 0 };
	must_fail_with(setsockopt(packets, SOL_PACKET, PACKET_RX_RING, &none, sizeof(none)), EBUSY);
}

static void sabotage(void)
{
	must(munmap(ring, BYTES));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
