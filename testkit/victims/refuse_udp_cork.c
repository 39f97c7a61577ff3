/* Has a UDP socket with UDP_CORK, which holds the first part of a datagram. */
#include "victim.h"
#include "victim_inet.h"

#include <netinet/udp.h>

#define FIRST "first,"
#define SECOND "second"

static int receiver, sender;

static void setup(void)
{
	struct sockaddr_in address;
	socklen_t size = sizeof(address);
	int on = 1;
	receiver = victim_inet_socket(AF_INET, SOCK_DGRAM);
	must(getsockname(receiver, (struct sockaddr *)&address, &size));
	sender = must(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	must(connect(sender, (struct sockaddr *)&address, size));
	must(setsockopt(sender, IPPROTO_UDP, UDP_CORK, &on, sizeof(on)));
	must(send(sender, FIRST, strlen(FIRST), 0));
}

static void verify(void)
{
	must_fail_with(recv(receiver, &(char){ 0 }, 1, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
}

static void uncork(void)
{
	int off = 0;
	must(setsockopt(sender, IPPROTO_UDP, UDP_CORK, &off, sizeof(off)));
}

static void sabotage(void)
{
	uncork();
}

static void finish(void)
{
	char text[64] = "";
	must(send(sender, SECOND, strlen(SECOND), 0));
	uncork();
	must(recv(receiver, text, sizeof(text) - 1, 0));
	check(strcmp(text, FIRST SECOND) == 0, "received %s", text);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
