/* Has a Unix stream socket with a queued urgent byte between other bytes. */
#include "victim.h"
#include "victim_stream.h"

static int ends[2];

static void setup(void)
{
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	check(send(ends[0], "before", 6, 0) == 6, "send: %m");
	if (send(ends[0], "!", 1, MSG_OOB) != 1)
		victim_unsupported("urgent bytes in Unix sockets");
	check(send(ends[0], "after", 5, 0) == 5, "send: %m");
}

static void verify(void)
{
	char byte = 0;
	check(recv(ends[1], &byte, 1, MSG_OOB | MSG_PEEK | MSG_DONTWAIT) == 1 && byte == '!', "the urgent byte is lost");
}

static void sabotage(void)
{
	char byte;
	check(recv(ends[1], &byte, 1, MSG_OOB) == 1, "recv: %m");
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
