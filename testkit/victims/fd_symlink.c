/* Proves that symbolic links that are open themselves (O_PATH with O_NOFOLLOW) are restored, with
 * and without a name: target and owner. Two descriptions of one link still refer to one link. */
#include "victim.h"

#define OWNER 1234
#define KEPT "nowhere"
#define GONE "/proc/self/not there"

static int kept, gone, gone_too;

static void setup(void)
{
	char path[PATH_MAX];
	must(symlink(KEPT, victim_path(path, "kept")));
	kept = must(open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC));
	must(symlink(GONE, victim_path(path, "gone")));
	if (lchown(path, OWNER, OWNER) != 0)
		victim_unsupported("lchown: %m");
	gone = must(open(path, O_PATH | O_NOFOLLOW));
	gone_too = must(open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC));
	must(unlink(path));
}

static void check_link(int fd, const char *expected)
{
	char target[PATH_MAX] = "";
	struct stat status;
	must(fstat(fd, &status));
	check(S_ISLNK(status.st_mode), "fd %d: mode is %o", fd, status.st_mode);
	must(readlinkat(fd, "", target, sizeof(target) - 1));
	check(strcmp(target, expected) == 0, "fd %d leads to %s, to %s before", fd, target, expected);
	check((fcntl(fd, F_GETFL) & (O_PATH | O_NOFOLLOW)) == (O_PATH | O_NOFOLLOW), "fd %d: flags are %#x", fd,
	      (unsigned)fcntl(fd, F_GETFL));
}

static void verify(void)
{
	char path[PATH_MAX];
	struct stat first, second;
	check_link(kept, KEPT);
	check_link(gone, GONE);
	check_link(gone_too, GONE);
	must(fstat(gone, &first));
	must(fstat(gone_too, &second));
	check(first.st_ino == second.st_ino, "one link became two");
	check(first.st_uid == OWNER && first.st_gid == OWNER, "owner is %u:%u", first.st_uid, first.st_gid);
	check(first.st_nlink == 0, "the link has a name");
	must_fail_with(readlink(victim_path(path, "gone"), (char[1]){ 0 }, 1), ENOENT);
}

static void sabotage(void)
{
	must(dup2(kept, gone));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
