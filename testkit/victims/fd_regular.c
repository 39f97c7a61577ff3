/* Proves that regular files are restored: descriptor number, offset, access mode, status flags
 * (O_APPEND, O_PATH, ...) and close-on-exec. A dup(2) shares its offset, and a second open(2) does
 * not. Parent and child still share one offset. The content of the files equals the content that
 * the program has in memory.
 *
 * After a crash: files may contain newer data than the memory. */
#include "victim.h"

#define PLAIN_BYTES 8192
#define PLAIN_SEED 11
#define HIGH_FD 400
#define SHARED_RECORDS_MAX (1u << 20)

static int plain, plain_dup, plain_again, high, journal, path_only, counter_file, shared;
static off_t plain_at, again_at;
static uint64_t counter, journal_records;
static uint32_t shared_sequence;
static uint32_t shared_writer; /* 0 in the parent, 1 in the child */
static pid_t child;

struct record {
	uint32_t writer, sequence;
};

static int open_beside(const char *name, int flags)
{
	char path[PATH_MAX];
	return must(open(victim_path(path, name), flags, 0640));
}

static void write_shared_record(void)
{
	struct record record = { shared_writer, shared_sequence };
	if (shared_sequence >= SHARED_RECORDS_MAX)
		return;
	shared_sequence++;
	check(write(shared, &record, sizeof(record)) == sizeof(record), "shared write: %m");
}

static void setup(void)
{
	unsigned char content[PLAIN_BYTES];
	struct victim_gate gate = victim_gate_make();
	plain = open_beside("plain", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC);
	victim_fill(content, sizeof(content), PLAIN_SEED);
	check(write(plain, content, sizeof(content)) == sizeof(content), "write: %m");
	plain_at = must(lseek(plain, 1234, SEEK_SET));
	plain_dup = must(dup(plain));
	plain_again = open_beside("plain", O_RDONLY | O_NOATIME | O_NONBLOCK);
	again_at = must(lseek(plain_again, 77, SEEK_SET));
	high = must(fcntl(plain_again, F_DUPFD_CLOEXEC, HIGH_FD));
	journal = open_beside("journal", O_WRONLY | O_APPEND | O_CREAT | O_TRUNC);
	path_only = open_beside("plain", O_PATH);
	counter_file = open_beside("counter", O_RDWR | O_CREAT | O_TRUNC | O_SYNC);
	must(pwrite(counter_file, &counter, sizeof(counter), 64));
	shared = open_beside("shared", O_RDWR | O_CREAT | O_TRUNC);
	child = victim_fork();
	if (child == 0) {
		shared_writer = 1;
		victim_gate_open(gate);
		victim_child(write_shared_record, NULL);
	}
	victim_gate_wait(gate);
}

static void work(void)
{
	uint64_t on_disk = 0;
	must(pread(counter_file, &on_disk, sizeof(on_disk), 64));
	check(victim_file_agrees(on_disk, counter), "file says %llu, memory says %llu", (unsigned long long)on_disk,
	      (unsigned long long)counter);
	counter++;
	must(pwrite(counter_file, &counter, sizeof(counter), 64));
	if (counter % 16 == 0) {
		check(write(journal, &counter, sizeof(counter)) == sizeof(counter), "journal: %m");
		journal_records++;
	}
	write_shared_record();
}

static void check_flags(const char *name, int fd, int descriptor_flags, int status_flags)
{
	const int compared = O_ACCMODE | O_APPEND | O_NONBLOCK | O_NOATIME | O_PATH | O_SYNC;
	int descriptor = must(fcntl(fd, F_GETFD)), status = must(fcntl(fd, F_GETFL));
	check(descriptor == descriptor_flags, "%s: descriptor flags are %#x", name, (unsigned)descriptor);
	check((status & compared) == status_flags, "%s: status flags are %#x", name, (unsigned)status);
}

/* Reads 16 bytes through one descriptor, and checks the offset of the other. */
static void check_shared_offset(int reader, int other, off_t *at)
{
	unsigned char bytes[16];
	check(lseek(reader, 0, SEEK_CUR) == *at, "offset is %lld, was %lld", (long long)lseek(reader, 0, SEEK_CUR),
	      (long long)*at);
	check(read(reader, bytes, sizeof(bytes)) == sizeof(bytes), "read: %m");
	for (size_t i = 0; i < sizeof(bytes); i++)
		check(bytes[i] == victim_byte(PLAIN_SEED, (uint64_t)*at + i), "content at %lld is wrong", (long long)*at);
	*at += (off_t)sizeof(bytes);
	check(lseek(other, 0, SEEK_CUR) == *at, "a dup does not share its offset");
}

static void verify(void)
{
	struct stat one, two;
	check_flags("plain", plain, FD_CLOEXEC, O_RDWR);
	check_flags("dup", plain_dup, 0, O_RDWR);
	check_flags("second open", plain_again, 0, O_RDONLY | O_NOATIME | O_NONBLOCK);
	check_flags("high", high, FD_CLOEXEC, O_RDONLY | O_NOATIME | O_NONBLOCK);
	check_flags("journal", journal, 0, O_WRONLY | O_APPEND);
	check_flags("path only", path_only, 0, O_PATH);
	check_flags("counter", counter_file, 0, O_RDWR | O_SYNC);
	check_shared_offset(plain_dup, plain, &plain_at);
	check_shared_offset(high, plain_again, &again_at);
	must(fstat(plain, &one));
	must(fstat(path_only, &two));
	check(one.st_ino == two.st_ino && one.st_dev == two.st_dev, "O_PATH names another file");
	check(one.st_size == PLAIN_BYTES, "size is %lld", (long long)one.st_size);
	must_fail_with(read(path_only, &one, 1), EBADF);
	must(fstat(journal, &one));
	check((uint64_t)one.st_size >= 8 * journal_records, "journal lost records");
}

static void sabotage(void)
{
	must(lseek(plain_dup, 5, SEEK_SET));
}

/* Checks that all records of both writers are in order: no record was written at a stale offset. */
static void finish(void)
{
	struct record record;
	uint32_t next[2] = { 0, 0 };
	off_t end, at = 0;
	victim_end_child(child);
	end = must(lseek(shared, 0, SEEK_CUR));
	/* Behind `end`, the file may still have records of a previous incarnation that crashed. */
	while ((at < end || !victim_crashed) && pread(shared, &record, sizeof(record), at) == sizeof(record)) {
		check(record.writer < 2 && record.sequence == next[record.writer], "record at %lld: writer %u, number %u",
		      (long long)at, record.writer, record.sequence);
		next[record.writer]++;
		at += (off_t)sizeof(record);
	}
	check(at == end, "offset is %lld, the file ends at %lld", (long long)end, (long long)at);
	check(next[0] == shared_sequence, "%u of %u own records are there", next[0], shared_sequence);
	check(next[1] > 0, "the child wrote nothing");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
