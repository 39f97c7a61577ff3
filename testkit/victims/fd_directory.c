/* Proves that an open directory is restored with its read position. A scan that began before the
 * checkpoint continues after it, and returns each entry exactly once. Openat works with plain
 * directory descriptors and with O_PATH descriptors. */
#include "victim.h"

#include <dirent.h>

#define ENTRIES 200

struct kernel_entry {
	uint64_t inode;
	int64_t next;
	unsigned short length;
	unsigned char kind;
	char name[];
};

static int scanned, path_only;
static unsigned char seen[ENTRIES];
static unsigned entries_seen, scans;

static void setup(void)
{
	char path[PATH_MAX], name[32];
	must(mkdir(victim_path(path, "entries"), 0755));
	scanned = must(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	path_only = must(open(path, O_PATH | O_DIRECTORY));
	for (int i = 0; i < ENTRIES; i++) {
		snprintf(name, sizeof(name), "entry-%03d", i);
		close(must(openat(path_only, name, O_WRONLY | O_CREAT, 0644)));
	}
}

static void end_scan(void)
{
	for (int i = 0; i < ENTRIES; i++)
		check(seen[i] == 1, "scan %u saw entry %d %u times", scans, i, seen[i]);
	memset(seen, 0, sizeof(seen));
	entries_seen = 0;
	scans++;
	must(lseek(scanned, 0, SEEK_SET));
}

/* Reads the entries that fit into 256 bytes. */
static void work(void)
{
	char buffer[256] __attribute__((aligned(8)));
	long got = must(syscall(SYS_getdents64, scanned, buffer, sizeof(buffer)));
	if (got == 0) {
		end_scan();
		return;
	}
	for (long at = 0; at < got;) {
		struct kernel_entry *entry = (struct kernel_entry *)(buffer + at);
		int number = -1;
		if (sscanf(entry->name, "entry-%d", &number) == 1) {
			check(number >= 0 && number < ENTRIES, "strange entry %s", entry->name);
			seen[number]++;
			entries_seen++;
		}
		at += entry->length;
	}
}

static void verify(void)
{
	check(fcntl(scanned, F_GETFD) == FD_CLOEXEC, "close-on-exec is lost");
	check(fcntl(path_only, F_GETFL) & O_PATH, "O_PATH is lost");
	check(fcntl(scanned, F_GETFL) & O_DIRECTORY, "O_DIRECTORY is lost");
	close(must(openat(scanned, "entry-007", O_RDONLY)));
	close(must(openat(path_only, "entry-008", O_RDONLY)));
}

static void sabotage(void)
{
	while (entries_seen == 0)
		work();
	must(lseek(scanned, 0, SEEK_SET));
}

/* Completes the current scan, and makes one more scan. */
static void finish(void)
{
	unsigned until = scans + 2;
	while (scans < until)
		work();
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
