/* Proves that a device node without a name is restored with device number, mode and owner, and
 * without a name. Two open file descriptions of the node still refer to one node. */
#include "victim.h"

#include <sys/sysmacros.h>

#define MODE (S_IFCHR | 0640)
#define OWNER 1234

static int reader, writer;
static char path[PATH_MAX];

static void setup(void)
{
	if (mknod(victim_path(path, "node"), MODE, makedev(1, 5)) != 0)
		victim_unsupported("mknod: %m");
	must(chown(path, OWNER, OWNER));
	must(chmod(path, MODE & 07777));
	reader = open(path, O_RDONLY | O_CLOEXEC);
	writer = open(path, O_WRONLY);
	unlink(path);
	if (reader < 0 || writer < 0)
		victim_unsupported("the file system takes no devices");
}

static void verify(void)
{
	struct stat status, other;
	char bytes[64];
	memset(bytes, 1, sizeof(bytes));
	must(fstat(reader, &status));
	must(fstat(writer, &other));
	check(status.st_mode == MODE && status.st_rdev == makedev(1, 5), "mode is %o, device is %u:%u", status.st_mode,
	      major(status.st_rdev), minor(status.st_rdev));
	check(status.st_uid == OWNER && status.st_gid == OWNER, "owner is %u:%u", status.st_uid, status.st_gid);
	check(status.st_nlink == 0, "the node has a name");
	check(status.st_ino == other.st_ino && status.st_dev == other.st_dev, "there are two nodes");
	check((fcntl(reader, F_GETFL) & O_ACCMODE) == O_RDONLY, "reader may write");
	check((fcntl(writer, F_GETFL) & O_ACCMODE) == O_WRONLY, "writer may read");
	check(read(reader, bytes, sizeof(bytes)) == sizeof(bytes) && bytes[0] == 0 && bytes[63] == 0, "it reads no zeros");
	check(write(writer, bytes, sizeof(bytes)) == sizeof(bytes), "write: %m");
	must_fail_with(access(path, F_OK), ENOENT);
}

static void sabotage(void)
{
	must(dup2(must(open("/dev/null", O_RDONLY | O_CLOEXEC)), reader));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
