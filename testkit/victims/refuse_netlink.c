/* Has a netlink socket with a dump request whose answer is not completely read. */
#include "victim.h"
#include "victim_stream.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>

static int held;
static struct sockaddr_nl address = { .nl_family = AF_NETLINK };

static void setup(void)
{
	struct {
		struct nlmsghdr header;
		struct rtgenmsg body;
	} request = { { sizeof(request), RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 42, 0 }, { AF_UNSPEC } };
	socklen_t size = sizeof(address);
	held = must(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
	must(bind(held, (struct sockaddr *)&address, size));
	must(getsockname(held, (struct sockaddr *)&address, &size));
	check(send(held, &request, sizeof(request), 0) == sizeof(request), "send: %m");
	victim_wait_readable(held, "netlink");
}

static void verify(void)
{
	struct sockaddr_nl now;
	socklen_t size = sizeof(now);
	must(getsockname(held, (struct sockaddr *)&now, &size));
	check(now.nl_pid == address.nl_pid, "the port is %u, was %u", now.nl_pid, address.nl_pid);
	victim_wait_readable(held, "netlink");
}

static void sabotage(void)
{
	close(held);
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
