/* Proves that directories that were removed while open are restored as removed directories, with
 * mode and flags. Two descriptions of one directory still refer to one directory, and another
 * removed directory stays a separate one. */
#include "victim.h"

#define MODE 0750

static int listed, named, other;

static void setup(void)
{
	char path[PATH_MAX];
	umask(022);
	must(mkdir(victim_path(path, "gone"), MODE));
	listed = must(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	named = must(open(path, O_PATH));
	must(rmdir(path));
	must(mkdir(path, MODE));
	other = must(open(path, O_RDONLY | O_DIRECTORY));
	must(rmdir(path));
	/* Now a regular file has the name. It must keep this name. */
	close(must(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)));
}

static void verify(void)
{
	char path[PATH_MAX];
	struct stat first, second, third;
	must(fstat(listed, &first));
	must(fstat(named, &second));
	must(fstat(other, &third));
	check(first.st_mode == (S_IFDIR | MODE) && third.st_mode == first.st_mode, "mode is %o", first.st_mode);
	check(first.st_nlink == 0 && third.st_nlink == 0, "a directory has %u names", (unsigned)first.st_nlink);
	check(first.st_ino == second.st_ino, "two descriptions of one directory are of two");
	check(first.st_ino != third.st_ino, "two directories became one");
	check((fcntl(named, F_GETFL) & O_PATH) != 0, "O_PATH is lost");
	must_fail_with(openat(listed, "file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600), ENOENT);
	must(stat(victim_path(path, "gone"), &second));
	check(S_ISREG(second.st_mode), "what has the name now is another file");
}

static void sabotage(void)
{
	must(dup2(listed, other));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
