/* Proves that tmpfs files that are open for writing and not mapped have the content of the
 * checkpoint after a restore, also after a crash. One file is written in place and read through a
 * second description. Another file is appended to. */
#include "victim_tmpfs.h"

#define LOG_BYTES_MAX 4096u

static char place_path[PATH_MAX], log_path[PATH_MAX];
static int place, reader, journal;
static uint64_t count;
static size_t logged;

static int make(const char *path, int flags)
{
	return must(open(path, flags | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
}

static void check_files(void)
{
	uint64_t stored = 0;
	struct stat status;
	check(pread(reader, &stored, sizeof(stored), 100) == sizeof(stored), "pread: %m");
	check(stored == count, "the file says %llu, memory %llu", (unsigned long long)stored, (unsigned long long)count);
	must(fstat(journal, &status));
	check((size_t)status.st_size == logged, "the journal has %lld bytes, had %zu", (long long)status.st_size, logged);
}

static void work(void)
{
	check_files();
	count++;
	check(pwrite(place, &count, sizeof(count), 100) == sizeof(count), "pwrite: %m");
	if (logged >= LOG_BYTES_MAX) {
		must(ftruncate(journal, 0));
		logged = 0;
	}
	check(write(journal, "line\n", 5) == 5, "write: %m");
	logged += 5;
}

static void setup(void)
{
	victim_tmpfs_need();
	place = make(victim_tmpfs_path(place_path, "place"), O_RDWR);
	reader = must(open(place_path, O_RDONLY | O_CLOEXEC));
	journal = make(victim_tmpfs_path(log_path, "journal"), O_WRONLY | O_APPEND);
	check(pwrite(place, &count, sizeof(count), 100) == sizeof(count), "pwrite: %m");
	work();
}

static void verify(void)
{
	struct stat by_name, open_one;
	work();
	must(stat(place_path, &by_name));
	must(fstat(place, &open_one));
	check(by_name.st_ino == open_one.st_ino, "the name leads to another file");
}

static void sabotage(void)
{
	check(pwrite(place, "?", 1, 100) == 1, "pwrite: %m");
	count++;
}

static void finish(void)
{
	must(unlink(place_path));
	must(unlink(log_path));
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
