/* Proves that listening sockets are restored under the current names of their files. The cases are:
 * a file renamed after bind (HAProxy); a file whose first name was replaced by a hard link with
 * another name (supervisord); a file with two names; and a file whose name was removed. */
#include "victim.h"
#include "victim_stream.h"

#include <sys/un.h>

#define LISTENERS 4

enum kind { RENAMED, LINKED, DOUBLE, REMOVED };

static struct listener {
	int fd;
	struct sockaddr_un address;
	char present[PATH_MAX];
} listeners[LISTENERS];

static void name(struct sockaddr_un *address, const char *path)
{
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	check(strlen(path) < sizeof(address->sun_path), "%s is too long for a socket", path);
	strcpy(address->sun_path, path);
}

static int connect_to(const char *path)
{
	struct sockaddr_un address;
	int client = must(socket(AF_UNIX, SOCK_STREAM, 0));
	name(&address, path);
	int result = connect(client, (struct sockaddr *)&address, sizeof(address));
	if (result < 0) {
		close(client);
		return -1;
	}
	return client;
}

static void setup_one(enum kind kind, struct listener *listener)
{
	char first[PATH_MAX], file[32];
	snprintf(file, sizeof(file), "%d.tmp", kind);
	victim_path(first, file);
	snprintf(file, sizeof(file), "%d.sock", kind);
	victim_path(listener->present, file);
	name(&listener->address, first);
	listener->fd = must(socket(AF_UNIX, SOCK_STREAM, 0));
	must(bind(listener->fd, (struct sockaddr *)&listener->address, sizeof(listener->address)));
	must(chmod(first, 0640));
	must(listen(listener->fd, 3));
	if (kind == RENAMED)
		must(rename(first, listener->present));
	if (kind == LINKED || kind == DOUBLE)
		must(link(first, listener->present));
	if (kind == LINKED || kind == REMOVED)
		must(unlink(first));
}

static void setup(void)
{
	for (int i = 0; i < LISTENERS; i++)
		setup_one((enum kind)i, &listeners[i]);
}

static void exchange(struct listener *listener, const char *path)
{
	char byte = 0;
	int client = connect_to(path);
	check(client >= 0, "connect to %s: %m", path);
	int server = must(accept(listener->fd, NULL, NULL));
	check(send(client, "x", 1, 0) == 1 && recv(server, &byte, 1, 0) == 1 && byte == 'x', "%s carries no data", path);
	close(client);
	close(server);
}

static void work(void)
{
	for (int i = 0; i < REMOVED; i++)
		exchange(&listeners[i], listeners[i].present);
}

static void verify(void)
{
	for (int i = 0; i < LISTENERS; i++) {
		struct listener *listener = &listeners[i];
		struct sockaddr_un address = { 0 };
		struct stat first, present;
		socklen_t size = sizeof(address);
		must(getsockname(listener->fd, (struct sockaddr *)&address, &size));
		check(strcmp(address.sun_path, listener->address.sun_path) == 0, "the address is %s", address.sun_path);
		if (i == REMOVED) {
			must_fail_with(stat(listener->present, &present), ENOENT);
		} else {
			must(stat(listener->present, &present));
			check((present.st_mode & 07777) == 0640, "mode %o of %s", present.st_mode, listener->present);
		}
		if (i != DOUBLE) {
			must_fail_with(stat(listener->address.sun_path, &first), ENOENT);
			continue;
		}
		must(stat(listener->address.sun_path, &first));
		check(first.st_ino == present.st_ino, "two names lead to two files");
	}
}

static void sabotage(void)
{
	must(unlink(listeners[RENAMED].present));
}

static void finish(void)
{
	exchange(&listeners[DOUBLE], listeners[DOUBLE].address.sun_path);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
