/* Has a Unix listener whose file has a second name in another directory. Names can be found only by
 * a search of directories, and a checkpoint cannot search all directories. */
#include "victim.h"
#include "victim_stream.h"

#include <sys/un.h>

static int listener;
static char far_name[PATH_MAX];

static void setup(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char path[PATH_MAX], folder[PATH_MAX];
	victim_path(path, "linked.sock");
	check(strlen(path) < sizeof(address.sun_path), "%s is too long for a socket", path);
	strcpy(address.sun_path, path);
	listener = must(socket(AF_UNIX, SOCK_STREAM, 0));
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)));
	must(listen(listener, 16));
	must(mkdir(victim_path(folder, "far"), 0700));
	must(link(path, victim_path(far_name, "far/linked.sock")));
}

static void verify(void)
{
	struct stat stat;
	must(lstat(far_name, &stat));
	check(stat.st_nlink == 2, "%s has %lu names", far_name, (unsigned long)stat.st_nlink);
	check(victim_socket_option(listener, SOL_SOCKET, SO_ACCEPTCONN) == 1, "does not listen");
}

static void sabotage(void)
{
	must(unlink(far_name));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
