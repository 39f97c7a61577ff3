/* Proves that TCP sockets are restored: listeners of both address families that accept new clients,
 * connections with queued bytes in both directions, addresses, ports and options. One connection is
 * between parent and child, with the child blocked in recv. */
#include "victim.h"
#include "victim_inet.h"

#define QUEUED_BYTES 9000

struct connection {
	const char *name;
	int family;
	int listener;
	int client, server;
	struct victim_stream to_server, to_client;
	struct sockaddr_storage listening, local, remote;
};

static struct connection connections[] = {
	{ .name = "v4", .family = AF_INET, .to_server.seed = 1, .to_client.seed = 2 },
	{ .name = "v6", .family = AF_INET6, .to_server.seed = 3, .to_client.seed = 4 },
};
static size_t families = 2;
static int own_end;
static uint64_t asked;
static pid_t child;

static void set_options(struct connection *connection)
{
	victim_set_socket_option(connection->client, IPPROTO_TCP, TCP_NODELAY, 1);
	victim_set_socket_option(connection->client, SOL_SOCKET, SO_KEEPALIVE, 1);
	victim_set_socket_option(connection->client, IPPROTO_TCP, TCP_KEEPIDLE, 777);
	victim_set_socket_option(connection->client, IPPROTO_TCP, TCP_KEEPINTVL, 55);
	victim_set_socket_option(connection->client, IPPROTO_TCP, TCP_KEEPCNT, 3);
	victim_set_socket_option(connection->server, IPPROTO_TCP, TCP_USER_TIMEOUT, 90000);
	victim_set_socket_option(connection->server, SOL_SOCKET, SO_OOBINLINE, 1);
	struct linger linger = { 1, 12 };
	must(setsockopt(connection->server, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	must(fcntl(connection->server, F_SETFD, FD_CLOEXEC));
}

static void setup_connection(struct connection *connection)
{
	connection->listener = victim_inet_socket(connection->family, SOCK_STREAM);
	must(listen(connection->listener, 11));
	victim_own_address(connection->listener, &connection->listening);
	connection->client = victim_inet_connect(connection->listener);
	connection->server = victim_inet_accept(connection->listener);
	set_options(connection);
	victim_own_address(connection->client, &connection->local);
	victim_peer_address(connection->client, &connection->remote);
	connection->to_server.name = connection->to_client.name = connection->name;
	connection->to_server.out = connection->to_client.in = connection->client;
	connection->to_server.in = connection->to_client.out = connection->server;
	victim_stream_send(&connection->to_server, QUEUED_BYTES);
	victim_stream_send(&connection->to_client, QUEUED_BYTES / 3);
}

static void start_child(void)
{
	int client = victim_inet_connect(connections[0].listener);
	int server = victim_inet_accept(connections[0].listener);
	uint64_t question;
	child = victim_fork();
	if (child != 0) {
		own_end = client;
		close(server);
		return;
	}
	for (int fd = 3; fd < 64; fd++)
		if (fd != server)
			close(fd);
	while (recv(server, &question, sizeof(question), MSG_WAITALL) == sizeof(question)) {
		question = victim_mix(question);
		check(send(server, &question, sizeof(question), 0) == sizeof(question), "child: send: %m");
	}
	_exit(0);
}

static void setup(void)
{
	families = victim_has_ipv6() ? 2 : 1;
	for (size_t i = 0; i < families; i++)
		setup_connection(&connections[i]);
	start_child();
}

static void work(void)
{
	uint64_t reply = 0;
	for (size_t i = 0; i < families; i++) {
		victim_stream_turn(&connections[i].to_server, 1 + (size_t)(victim_ticks % 2000));
		victim_stream_turn(&connections[i].to_client, 1 + (size_t)(victim_ticks % 900));
	}
	asked++;
	check(send(own_end, &asked, sizeof(asked), 0) == sizeof(asked), "send to the child: %m");
	check(recv(own_end, &reply, sizeof(reply), MSG_WAITALL) == sizeof(reply), "recv from the child: %m");
	check(reply == victim_mix(asked), "the child answered wrongly");
}

static void check_options(const struct connection *connection)
{
	const char *name = connection->name;
	struct linger linger = { 0, 0 };
	socklen_t size = sizeof(linger);
	check(victim_socket_option(connection->client, IPPROTO_TCP, TCP_NODELAY) == 1, "%s: TCP_NODELAY", name);
	check(victim_socket_option(connection->server, IPPROTO_TCP, TCP_NODELAY) == 0, "%s: TCP_NODELAY", name);
	check(victim_socket_option(connection->client, SOL_SOCKET, SO_KEEPALIVE) == 1, "%s: SO_KEEPALIVE", name);
	check(victim_socket_option(connection->client, IPPROTO_TCP, TCP_KEEPIDLE) == 777, "%s: TCP_KEEPIDLE", name);
	check(victim_socket_option(connection->client, IPPROTO_TCP, TCP_KEEPINTVL) == 55, "%s: TCP_KEEPINTVL", name);
	check(victim_socket_option(connection->client, IPPROTO_TCP, TCP_KEEPCNT) == 3, "%s: TCP_KEEPCNT", name);
	check(victim_socket_option(connection->server, IPPROTO_TCP, TCP_USER_TIMEOUT) == 90000, "%s: TCP_USER_TIMEOUT",
	      name);
	check(victim_socket_option(connection->server, SOL_SOCKET, SO_OOBINLINE) == 1, "%s: SO_OOBINLINE", name);
	check(victim_socket_option(connection->listener, SOL_SOCKET, SO_REUSEADDR) == 1, "%s: SO_REUSEADDR", name);
	must(getsockopt(connection->server, SOL_SOCKET, SO_LINGER, &linger, &size));
	check(linger.l_onoff == 1 && linger.l_linger == 12, "%s: SO_LINGER", name);
}

static void verify(void)
{
	for (size_t i = 0; i < families; i++) {
		const struct connection *connection = &connections[i];
		struct sockaddr_storage now;
		socklen_t size = victim_own_address(connection->listener, &now);
		check(memcmp(&now, &connection->listening, size) == 0, "%s: listens elsewhere", connection->name);
		check(victim_socket_option(connection->listener, SOL_SOCKET, SO_ACCEPTCONN) == 1, "%s: does not listen",
		      connection->name);
		size = victim_own_address(connection->client, &now);
		check(memcmp(&now, &connection->local, size) == 0, "%s: local address changed", connection->name);
		size = victim_peer_address(connection->client, &now);
		check(memcmp(&now, &connection->remote, size) == 0, "%s: peer address changed", connection->name);
		size = victim_peer_address(connection->server, &now);
		check(memcmp(&now, &connection->local, size) == 0, "%s: the server sees another peer", connection->name);
		check(fcntl(connection->server, F_GETFD) == FD_CLOEXEC && fcntl(connection->client, F_GETFD) == 0,
		      "%s: close-on-exec changed", connection->name);
		check_options(connection);
	}
}

static void sabotage(void)
{
	char byte;
	check(recv(connections[0].server, &byte, 1, 0) == 1, "sabotage: %m");
}

static void finish(void)
{
	int status = 0;
	for (size_t i = 0; i < families; i++) {
		struct connection *connection = &connections[i];
		char bytes[4] = "";
		victim_stream_drain(&connection->to_server);
		victim_stream_drain(&connection->to_client);
		victim_stream_must_be_empty(&connection->to_server);
		victim_stream_must_be_empty(&connection->to_client);
		int client = victim_inet_connect(connection->listener);
		int server = victim_inet_accept(connection->listener);
		check(send(client, "new", 3, 0) == 3 && recv(server, bytes, 3, MSG_WAITALL) == 3,
		      "%s: a new connection does not carry data", connection->name);
		close(connection->client);
		check(recv(connection->server, bytes, 1, 0) == 0, "%s: no end of stream", connection->name);
	}
	close(own_end);
	check(waitpid(child, &status, 0) == child && status == 0, "child ended with status 0x%x", status);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
