/* Proves that named Unix sockets are restored. Listeners with a path or an abstract name accept new
 * clients. Accepted connections with both ends in the program still work. Queued datagrams keep the
 * address of their sender. */
#include "victim.h"
#include "victim_stream.h"

#include <sys/un.h>

#define WAITING_DATAGRAMS 3

struct listener {
	const char *name;
	int type;
	struct sockaddr_un address;
	socklen_t size;
	int fd;
	struct victim_stream to_server, to_client;
};

static struct listener listeners[] = {
	{ .name = "path", .type = SOCK_STREAM, .to_server.seed = 1, .to_client.seed = 2 },
	{ .name = "abstract", .type = SOCK_SEQPACKET, .to_server.seed = 3, .to_client.seed = 4 },
};
static int mailbox, sender;
static struct sockaddr_un mailbox_address, sender_address;
static socklen_t mailbox_size, sender_size;
static uint64_t mails_sent, mails_received;

static socklen_t path_address(struct sockaddr_un *address, const char *file)
{
	char path[PATH_MAX];
	victim_path(path, file);
	address->sun_family = AF_UNIX;
	check(strlen(path) < sizeof(address->sun_path), "%s is too long for a socket", path);
	strcpy(address->sun_path, path);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
}

static socklen_t abstract_address(struct sockaddr_un *address, const char *name)
{
	address->sun_family = AF_UNIX;
	int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "victim-%d-%s", getpid(), name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Creates a new connection with the ends `client` and `server`. */
static void connect_to(const struct listener *listener, int *client, int *server)
{
	*client = must(socket(AF_UNIX, listener->type, 0));
	check(connect(*client, (const struct sockaddr *)&listener->address, listener->size) == 0, "%s: connect: %m",
	      listener->name);
	*server = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
	check(*server >= 0, "%s: accept: %m", listener->name);
}

static void send_mail(void)
{
	check(sendto(sender, &mails_sent, sizeof(mails_sent), 0, (struct sockaddr *)&mailbox_address, mailbox_size) ==
		      sizeof(mails_sent), "sendto: %m");
	mails_sent++;
}

static void receive_mail(void)
{
	uint64_t number = ~0ull;
	struct sockaddr_un from = { 0 };
	socklen_t size = sizeof(from);
	check(recvfrom(mailbox, &number, sizeof(number), MSG_DONTWAIT, (struct sockaddr *)&from, &size) ==
		      sizeof(number), "recvfrom: %m");
	check(number == mails_received, "datagram %llu, want %llu", (unsigned long long)number,
	      (unsigned long long)mails_received);
	check(size == sender_size && memcmp(&from, &sender_address, size) == 0, "the sender's address is lost");
	mails_received++;
}

static void setup_listener(struct listener *listener)
{
	int client, server;
	listener->fd = must(socket(AF_UNIX, listener->type | SOCK_CLOEXEC, 0));
	must(bind(listener->fd, (struct sockaddr *)&listener->address, listener->size));
	must(listen(listener->fd, 7));
	connect_to(listener, &client, &server);
	listener->to_server.name = listener->to_client.name = listener->name;
	listener->to_server.out = listener->to_client.in = client;
	listener->to_server.in = listener->to_client.out = server;
	victim_message_send(&listener->to_server);
	victim_message_send(&listener->to_client);
}

static void setup(void)
{
	listeners[0].size = path_address(&listeners[0].address, "listener.sock");
	listeners[1].size = abstract_address(&listeners[1].address, "listener");
	setup_listener(&listeners[0]);
	setup_listener(&listeners[1]);
	mailbox = must(socket(AF_UNIX, SOCK_DGRAM, 0));
	mailbox_size = path_address(&mailbox_address, "mailbox.sock");
	must(bind(mailbox, (struct sockaddr *)&mailbox_address, mailbox_size));
	sender = must(socket(AF_UNIX, SOCK_DGRAM, 0));
	sender_size = abstract_address(&sender_address, "sender");
	must(bind(sender, (struct sockaddr *)&sender_address, sender_size));
	for (int i = 0; i < WAITING_DATAGRAMS; i++)
		send_mail();
}

/* Exactly one message is queued in each direction, so one read from a byte stream returns exactly
 * one message. */
static void work(void)
{
	for (size_t i = 0; i < 2; i++) {
		victim_message_receive(&listeners[i].to_server);
		victim_message_send(&listeners[i].to_server);
		victim_message_receive(&listeners[i].to_client);
		victim_message_send(&listeners[i].to_client);
	}
	send_mail();
	receive_mail();
}

static void verify(void)
{
	for (size_t i = 0; i < 2; i++) {
		struct listener *listener = &listeners[i];
		struct sockaddr_un name = { 0 };
		socklen_t size = sizeof(name);
		check(victim_socket_option(listener->fd, SOL_SOCKET, SO_ACCEPTCONN) == 1, "%s: does not listen",
		      listener->name);
		must(getsockname(listener->fd, (struct sockaddr *)&name, &size));
		check(size == listener->size && memcmp(&name, &listener->address, size) == 0, "%s: name changed",
		      listener->name);
		size = sizeof(name);
		must(getpeername(listener->to_server.out, (struct sockaddr *)&name, &size));
		check(size == listener->size && memcmp(&name, &listener->address, size) == 0, "%s: peer name changed",
		      listener->name);
		check(fcntl(listener->fd, F_GETFD) == FD_CLOEXEC, "%s: close-on-exec is lost", listener->name);
	}
}

static void sabotage(void)
{
	must(unlink(listeners[0].address.sun_path));
}

static void finish(void)
{
	for (size_t i = 0; i < 2; i++) {
		int client, server;
		char bytes[4] = "";
		connect_to(&listeners[i], &client, &server);
		check(send(client, "new", 3, 0) == 3 && recv(server, bytes, 3, 0) == 3 && strcmp(bytes, "new") == 0,
		      "%s: a new connection does not carry data", listeners[i].name);
		close(client);
		close(server);
		victim_message_drain(&listeners[i].to_server);
		victim_message_drain(&listeners[i].to_client);
		victim_stream_must_be_empty(&listeners[i].to_server);
		victim_stream_must_be_empty(&listeners[i].to_client);
	}
	while (mails_received < mails_sent)
		receive_mail();
	must_fail_with(recv(mailbox, &mails_sent, 1, MSG_DONTWAIT), EAGAIN);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
