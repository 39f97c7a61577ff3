/* The programs of supervision.py: a server and a client that exchange messages of 64 bytes, a program with many
 * listening sockets, and a computation.
 *
 * exchange serve ADDRESS            replies to each message with the same message, one connection after the other
 * exchange keep ADDRESS FILE        sends messages over one connection, and waits for each reply
 * exchange anew ADDRESS FILE        makes a new connection for each message
 * exchange listen COUNT NAME        listens on COUNT abstract Unix addresses
 * exchange work FILE                computes; the only system calls are those of the records
 *
 * ADDRESS is a port of 127.0.0.1, or an absolute path. The program appends a record to FILE every 100 ms: the time
 * (CLOCK_MONOTONIC, ns), and the number of exchanges or pieces of work so far. CPU=N in the environment binds the
 * process to processor N. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE 64
#define RECORD_NS 100000000u

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Writes a record with the count, if 100 ms have passed since the last record. */
static void note(int file, uint64_t count)
{
	static uint64_t due;
	uint64_t time = now();
	if (time < due)
		return;
	char line[64];
	int length = snprintf(line, sizeof line, "%llu %llu\n", (unsigned long long)time, (unsigned long long)count);
	if (write(file, line, (size_t)length) != length)
		fail("write");
	due = time + RECORD_NS;
}

static int open_record(const char *path)
{
	int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (file < 0)
		fail(path);
	return file;
}

static socklen_t address_of(const char *text, struct sockaddr_storage *address)
{
	memset(address, 0, sizeof *address);
	if (text[0] == '/') {
		struct sockaddr_un *unix_address = (struct sockaddr_un *)address;
		unix_address->sun_family = AF_UNIX;
		strncpy(unix_address->sun_path, text, sizeof unix_address->sun_path - 1);
		return sizeof *unix_address;
	}
	struct sockaddr_in *inet = (struct sockaddr_in *)address;
	inet->sin_family = AF_INET;
	inet->sin_port = htons((uint16_t)atoi(text));
	inet->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return sizeof *inet;
}

static int socket_for(const struct sockaddr_storage *address)
{
	int one = 1, made = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (made < 0)
		fail("socket");
	if (address->ss_family == AF_INET) {
		setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	}
	return made;
}

/* Receives a message. Returns 0 if the connection ends before the message is complete. */
static int receive(int from, char *message)
{
	size_t got = 0;
	while (got < MESSAGE) {
		ssize_t more = read(from, message + got, MESSAGE - got);
		if (more <= 0)
			return 0;
		got += (size_t)more;
	}
	return 1;
}

static void serve(const char *text)
{
	struct sockaddr_storage address;
	socklen_t length = address_of(text, &address);
	int listener = socket_for(&address);
	if (text[0] == '/')
		unlink(text);
	if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 128) != 0)
		fail("listen");
	for (;;) {
		char message[MESSAGE];
		int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (client < 0)
			continue;
		if (address.ss_family == AF_INET)
			setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
		while (receive(client, message) && write(client, message, MESSAGE) == MESSAGE)
			;
		close(client);
	}
}

static int connect_to(const char *text)
{
	struct sockaddr_storage address;
	socklen_t length = address_of(text, &address);
	int connection = socket_for(&address);
	/* close(2) resets the connection. Otherwise, sockets in TIME_WAIT would use up all ports. */
	struct linger linger = {1, 0};
	if (address.ss_family == AF_INET)
		setsockopt(connection, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
	while (connect(connection, (struct sockaddr *)&address, length) != 0)
		usleep(1000);
	return connection;
}

static void ask(const char *text, const char *path, int anew)
{
	int record = open_record(path), connection = anew ? -1 : connect_to(text);
	char message[MESSAGE] = "question";
	for (uint64_t count = 0;;) {
		if (anew)
			connection = connect_to(text);
		if (write(connection, message, MESSAGE) != MESSAGE || !receive(connection, message))
			fail("exchange");
		if (anew)
			close(connection);
		note(record, ++count);
	}
}

static void listen_at(unsigned count, const char *name)
{
	for (unsigned index = 0; index < count; index++) {
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s-%u", name, index);
		int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		socklen_t whole = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
		if (bind(listener, (struct sockaddr *)&address, whole) != 0 || listen(listener, 16) != 0)
			fail("listen");
	}
	for (;;)
		pause();
}

static void work(const char *path)
{
	int record = open_record(path);
	uint64_t value = 1;
	for (uint64_t count = 0;;) {
		for (unsigned step = 0; step < 200000; step++) {
			value ^= value << 13;
			value ^= value >> 7;
			value ^= value << 17;
		}
		if (value == 0)
			fail("the work");
		note(record, ++count);
	}
}

int main(int argc, char **argv)
{
	const char *cpu = getenv("CPU"), *what = argc > 2 ? argv[1] : "";
	if (cpu != NULL) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET(atoi(cpu), &set);
		if (sched_setaffinity(0, sizeof set, &set) != 0)
			fail("sched_setaffinity");
	}
	if (strcmp(what, "serve") == 0)
		serve(argv[2]);
	else if (strcmp(what, "listen") == 0 && argc == 4)
		listen_at((unsigned)atoi(argv[2]), argv[3]);
	else if (strcmp(what, "work") == 0)
		work(argv[2]);
	else if ((strcmp(what, "keep") == 0 || strcmp(what, "anew") == 0) && argc == 4)
		ask(argv[2], argv[3], strcmp(what, "anew") == 0);
	fprintf(stderr, "usage: see the head of exchange.c\n");
	return 2;
}
