/* Has connections to a Unix listener that are not accepted yet, with bytes that the clients have
 * sent. Only accept(2) gives access to the bytes. Therefore, a checkpoint can save them (in order)
 * only if it ends the program. */
#include "victim.h"
#include "victim_stream.h"

#include <sys/un.h>

#define CLIENTS 3

static int listener, clients[CLIENTS];

static void setup(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1);
	size += (socklen_t)snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "victim-%d-pending", getpid());
	listener = must(socket(AF_UNIX, SOCK_STREAM, 0));
	must(bind(listener, (struct sockaddr *)&address, size));
	must(listen(listener, 16));
	for (int i = 0; i < CLIENTS; i++) {
		char hello[16];
		clients[i] = must(socket(AF_UNIX, SOCK_STREAM, 0));
		must(connect(clients[i], (struct sockaddr *)&address, size));
		snprintf(hello, sizeof(hello), "client %d", i);
		check(send(clients[i], hello, strlen(hello) + 1, 0) > 0, "send: %m");
	}
}

static void verify(void)
{
	check(victim_socket_option(listener, SOL_SOCKET, SO_ACCEPTCONN) == 1, "does not listen");
	victim_wait_readable(listener, "listener");
	for (int i = 0; i < CLIENTS; i++)
		must_fail_with(recv(clients[i], &(char){ 0 }, 1, MSG_DONTWAIT), EAGAIN);
}

static void sabotage(void)
{
	close(must(accept(listener, NULL, NULL)));
}

static void finish(void)
{
	for (int i = 0; i < CLIENTS; i++) {
		char got[32] = "", want[16];
		victim_wait_readable(listener, "listener");
		int server = must(accept(listener, NULL, NULL));
		snprintf(want, sizeof(want), "client %d", i);
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
