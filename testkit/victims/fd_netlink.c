/* Proves that netlink sockets are restored: port, group memberships and options, and that requests
 * are answered. A message that was unread or in flight at the checkpoint is still there, or is
 * reported as lost (ENOBUFS) exactly once. */
#include "victim.h"
#include "victim_stream.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#ifndef SOL_NETLINK
#define SOL_NETLINK 270
#endif
#define GROUP_WORDS 8

struct request {
	struct nlmsghdr header;
	struct ifinfomsg body;
};

static int asking, waiting;
static struct sockaddr_nl address = { .nl_family = AF_NETLINK };
static uint32_t groups[GROUP_WORDS];
static uint32_t sequence;

static void ask(int fd)
{
	struct request request = { { sizeof(request), RTM_GETLINK, NLM_F_REQUEST, ++sequence, 0 },
				   { .ifi_family = AF_UNSPEC, .ifi_index = 1 } };
	check(send(fd, &request, sizeof(request), 0) == sizeof(request), "send: %m");
}

/* Returns true if the socket has an answer, and false if it reports ENOBUFS. */
static bool is_answered(int fd)
{
	union {
		struct nlmsghdr header;
		char bytes[16384];
	} answer;
	ssize_t length;
	victim_wait_readable(fd, "netlink");
	length = recv(fd, &answer, sizeof(answer), 0);
	if (length < 0 && errno == ENOBUFS)
		return false;
	must(length);
	check(length >= (ssize_t)sizeof(answer.header) && answer.header.nlmsg_type == RTM_NEWLINK &&
		      answer.header.nlmsg_seq == sequence,
	      "the answer is of type %u, number %u", answer.header.nlmsg_type, answer.header.nlmsg_seq);
	return true;
}

static void read_groups(uint32_t *into)
{
	socklen_t size = sizeof(groups);
	memset(into, 0, sizeof(groups));
	must(getsockopt(asking, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, into, &size));
}

static void setup(void)
{
	socklen_t size = sizeof(address);
	asking = must(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
	must(bind(asking, (struct sockaddr *)&address, size));
	must(getsockname(asking, (struct sockaddr *)&address, &size));
	/* No event of these groups occurs during the test. */
	victim_set_socket_option(asking, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_IPV4_RULE);
	victim_set_socket_option(asking, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_MPLS_ROUTE);
	victim_set_socket_option(asking, SOL_NETLINK, NETLINK_EXT_ACK, 1);
	victim_set_socket_option(asking, SOL_SOCKET, SO_RCVBUF, 50000);
	read_groups(groups);
	check(groups[0] != 0, "no group was joined");
	waiting = must(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_ROUTE));
	ask(waiting);
	victim_wait_readable(waiting, "netlink");
}

/* Repeats the request, as netlink(7) requires after ENOBUFS. The messages that are queued after the
 * error are discarded. */
static void start_over(int fd)
{
	char bytes[16384];
	while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) >= 0)
		continue;
	check(errno == EAGAIN, "a second error: %m");
	ask(fd);
}

static void work(void)
{
	ask(asking);
	while (!is_answered(asking))
		start_over(asking);
}

static void verify(void)
{
	struct sockaddr_nl now;
	uint32_t groups_now[GROUP_WORDS];
	socklen_t size = sizeof(now);
	must(getsockname(asking, (struct sockaddr *)&now, &size));
	check(now.nl_pid == address.nl_pid, "the port is %u, was %u", now.nl_pid, address.nl_pid);
	read_groups(groups_now);
	check(memcmp(groups_now, groups, sizeof(groups)) == 0, "the groups are others");
	check(victim_socket_option(asking, SOL_NETLINK, NETLINK_EXT_ACK) == 1, "NETLINK_EXT_ACK");
	check(victim_socket_option(asking, SOL_SOCKET, SO_RCVBUF) == 100000, "SO_RCVBUF");
	victim_wait_readable(waiting, "netlink");
	work();
}

static void sabotage(void)
{
	victim_set_socket_option(asking, SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, RTNLGRP_IPV4_RULE);
}

static void finish(void)
{
	char bytes[16384];
	ssize_t length = recv(waiting, bytes, sizeof(bytes), MSG_DONTWAIT);
	check(length > 0 || errno == ENOBUFS, "what waited is neither there nor lost: %m");
	start_over(waiting);
	check(is_answered(waiting), "an answer was lost that came after the checkpoint");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
