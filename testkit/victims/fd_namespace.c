/* Has descriptors of its own network namespace and user namespace. */
#include "victim.h"

static int network, user;
static ino_t network_inode, user_inode;

static ino_t inode_of(int fd)
{
	struct stat status;
	must(fstat(fd, &status));
	return status.st_ino;
}

static void setup(void)
{
	network = must(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
	user = must(open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC));
	network_inode = inode_of(network);
	user_inode = inode_of(user);
}

static void verify(void)
{
	check(inode_of(network) == network_inode, "it is another network namespace");
	check(inode_of(user) == user_inode, "it is another user namespace");
}

static void sabotage(void)
{
	must(dup3(user, network, O_CLOEXEC));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
