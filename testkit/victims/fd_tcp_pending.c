/* Proves that TCP connections in the accept queue are restored in order, with the bytes that their
 * clients have sent.
 *
 * After a crash: connections that were not accepted are lost. */
#include "victim.h"
#include "victim_inet.h"
#include <poll.h>

#define CLIENTS 3

static int listener, clients[CLIENTS];
static struct sockaddr_storage addresses[CLIENTS];

static void setup(void)
{
	listener = victim_inet_socket(AF_INET, SOCK_STREAM);
	must(listen(listener, 16));
	for (int i = 0; i < CLIENTS; i++) {
		char hello[16];
		clients[i] = victim_inet_connect(listener);
		victim_own_address(clients[i], &addresses[i]);
		snprintf(hello, sizeof(hello), "client %d", i);
		check(send(clients[i], hello, strlen(hello) + 1, 0) > 0, "send: %m");
	}
}

static bool is_lost(void)
{
	struct pollfd waiting = { .fd = listener, .events = POLLIN };
	return victim_crashed && must(poll(&waiting, 1, 0)) == 0;
}

/* Checks that each client sees the end of its connection: both ends of the connection are lost in
 * the crash. */
static void verify_loss(void)
{
	for (int i = 0; i < CLIENTS; i++) {
		ssize_t got = recv(clients[i], &(char){ 0 }, 1, MSG_DONTWAIT);
		check(got == 0 || (got < 0 && errno == ECONNRESET), "client %d is not told: %zd, %m", i, got);
	}
}

static void verify(void)
{
	if (is_lost()) {
		verify_loss();
		return;
	}
	victim_wait_readable(listener, "listener");
	for (int i = 0; i < CLIENTS; i++)
		must_fail_with(recv(clients[i], &(char){ 0 }, 1, MSG_DONTWAIT), EAGAIN);
}

static void sabotage(void)
{
	close(must(accept(listener, NULL, NULL)));
}

static void serve_another(void)
{
	char got = 0;
	int client = victim_inet_connect(listener), server = victim_inet_accept(listener);
	check(send(server, "!", 1, 0) == 1 && recv(client, &got, 1, 0) == 1 && got == '!', "no answer");
	close(client);
	close(server);
}

static void finish(void)
{
	if (is_lost()) {
		serve_another();
		return;
	}
	for (int i = 0; i < CLIENTS; i++) {
		char got[32] = "", want[16];
		struct sockaddr_storage peer;
		int server = victim_inet_accept(listener);
		socklen_t size = victim_peer_address(server, &peer);
		check(memcmp(&peer, &addresses[i], size) == 0, "connection %d comes from elsewhere", i);
		snprintf(want, sizeof(want), "client %d", i);
		victim_wait_readable(server, "accepted");
		must(recv(server, got, sizeof(got), 0));
		check(strcmp(got, want) == 0, "connection %d says [%s]", i, got);
		check(send(server, "!", 1, 0) == 1 && recv(clients[i], got, 1, 0) == 1, "connection %d: no answer", i);
		close(server);
	}
	must(fcntl(listener, F_SETFL, O_NONBLOCK));
	must_fail_with(accept(listener, NULL, NULL), EAGAIN);
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
