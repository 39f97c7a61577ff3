/* Has a raw IP socket. */
#include "victim.h"
#include "victim_stream.h"

#include <netinet/in.h>

#define PROTOCOL 253 /* reserved for experiments */

static int held;

static void setup(void)
{
	held = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, PROTOCOL);
	if (held < 0)
		victim_unsupported("raw socket: %m");
}

static void verify(void)
{
	check(victim_socket_option(held, SOL_SOCKET, SO_TYPE) == SOCK_RAW, "it is no raw socket any more");
	check(victim_socket_option(held, SOL_SOCKET, SO_PROTOCOL) == PROTOCOL, "the protocol changed");
}

static void sabotage(void)
{
	close(held);
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
