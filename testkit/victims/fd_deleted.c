/* Proves that the restore of a file without a name keeps its content, offset and flags. The cases
 * are: an unlinked file, an unlinked file whose name a new file has, and a file of O_TMPFILE. */
#include "victim.h"

#define BYTES 20000

static int unlinked, unlinked_dup, replaced, nameless;
static uint64_t counter;

static int make(const char *name, int flags, uint64_t seed)
{
	static unsigned char content[BYTES];
	char path[PATH_MAX];
	int fd = must(open(victim_path(path, name), O_RDWR | flags, 0600));
	victim_fill(content, sizeof(content), seed);
	check(write(fd, content, sizeof(content)) == sizeof(content), "write: %m");
	return fd;
}

static void setup(void)
{
	char path[PATH_MAX];
	unlinked = make("unlinked", O_CREAT | O_EXCL, 1);
	unlinked_dup = must(dup(unlinked));
	replaced = make("replaced", O_CREAT | O_EXCL | O_CLOEXEC, 2);
	must(unlink(victim_path(path, "unlinked")));
	must(unlink(victim_path(path, "replaced")));
	close(make("replaced", O_CREAT | O_EXCL, 3));
	nameless = make(".", O_TMPFILE, 4);
	must(ftruncate(nameless, BYTES + 4096));
	must(lseek(unlinked, 321, SEEK_SET));
}

static void work(void)
{
	uint64_t stored = 0;
	must(pread(nameless, &stored, sizeof(stored), BYTES));
	check(stored == counter, "deleted file says %llu, memory says %llu", (unsigned long long)stored,
	      (unsigned long long)counter);
	counter++;
	must(pwrite(nameless, &counter, sizeof(counter), BYTES));
}

static void check_content(const char *name, int fd, off_t size, uint64_t seed)
{
	static unsigned char content[BYTES];
	struct stat status;
	must(fstat(fd, &status));
	check(status.st_nlink == 0, "%s: has %lu links, must have none", name, (unsigned long)status.st_nlink);
	check(status.st_size == size, "%s: size is %lld", name, (long long)status.st_size);
	check((status.st_mode & 0777) == 0600, "%s: mode is %o", name, status.st_mode);
	check(pread(fd, content, sizeof(content), 0) == sizeof(content), "%s: read: %m", name);
	check(victim_differs(content, sizeof(content), seed) < 0, "%s: content is wrong", name);
}

static void verify(void)
{
	char path[PATH_MAX];
	struct stat status;
	check_content("unlinked", unlinked, BYTES, 1);
	check_content("replaced", replaced, BYTES, 2);
	check_content("nameless", nameless, BYTES + 4096, 4);
	check(lseek(unlinked, 0, SEEK_CUR) == 321 && lseek(unlinked_dup, 0, SEEK_CUR) == 321, "offset changed");
	check(fcntl(replaced, F_GETFD) == FD_CLOEXEC && fcntl(unlinked, F_GETFD) == 0, "descriptor flags changed");
	must_fail_with(stat(victim_path(path, "unlinked"), &status), ENOENT);
	must(stat(victim_path(path, "replaced"), &status));
}

static void sabotage(void)
{
	must(pwrite(replaced, "x", 1, 777));
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
