/* Addresses and connections on the loopback device, for the victims with TCP and UDP sockets. The
 * kernel chooses the ports, so victims can run in parallel. */
#ifndef UNDYING_VICTIM_INET_H
#define UNDYING_VICTIM_INET_H

#include "victim.h"
#include "victim_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

static inline bool victim_has_ipv6(void)
{
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	bool works = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
	if (fd >= 0)
		close(fd);
	return works;
}

/* Creates a socket that is bound to a free port of the loopback address. */
static inline int victim_inet_socket(int family, int type)
{
	struct sockaddr_in six_no = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int fd = must(socket(family, type, 0));
	if (type == SOCK_STREAM)
		victim_set_socket_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (family == AF_INET6)
		must(bind(fd, (struct sockaddr *)&six, sizeof(six)));
	else
		must(bind(fd, (struct sockaddr *)&six_no, sizeof(six_no)));
	return fd;
}

static inline socklen_t victim_own_address(int fd, struct sockaddr_storage *address)
{
	socklen_t size = sizeof(*address);
	memset(address, 0, sizeof(*address));
	must(getsockname(fd, (struct sockaddr *)address, &size));
	return size;
}

static inline socklen_t victim_peer_address(int fd, struct sockaddr_storage *address)
{
	socklen_t size = sizeof(*address);
	memset(address, 0, sizeof(*address));
	must(getpeername(fd, (struct sockaddr *)address, &size));
	return size;
}

/* Creates a client socket that is connected to `listener`. The listener has not accepted the
 * connection yet. */
static inline int victim_inet_connect(int listener)
{
	struct sockaddr_storage address;
	socklen_t size = victim_own_address(listener, &address);
	int client = must(socket(address.ss_family, SOCK_STREAM, 0));
	must(connect(client, (struct sockaddr *)&address, size));
	return client;
}

static inline int victim_inet_accept(int listener)
{
	victim_wait_readable(listener, "listener");
	return must(accept(listener, NULL, NULL));
}

#endif
