/* Makes the simplest possible checkpoint of memory: stops a process, writes all its present pages to a file, makes the
 * file durable, and resumes the process. The pause of undying is compared with this stop. The file
 * is no image: nothing can be restored from it.
 *
 * Options: pid=; file=. Prints the number of bytes, and how long the process was stopped, in ns. */
#include "subject.h"
#include <errno.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define CHUNK (1ul << 20)
#define PRESENT (3ull << 62)

static unsigned char *buffer;
static int memory_fd, file_fd, map_fd;

/* Copies the present pages of the range to the file. Adjacent pages are read with one call. Returns the bytes. */
static uint64_t copy_area(uint64_t from, uint64_t to)
{
	static uint64_t map[CHUNK / PAGE];
	uint64_t copied = 0;
	for (uint64_t at = from; at < to; at += CHUNK) {
		size_t count = (to - at < CHUNK ? to - at : CHUNK) / PAGE, used = 0;
		if (pread(map_fd, map, count * 8, (off_t)(at / PAGE * 8)) != (ssize_t)(count * 8))
			fail("pagemap");
		for (size_t i = 0; i < count; i++) {
			size_t first = i;
			while (i < count && map[i] & PRESENT)
				i++;
			if (i == first)
				continue;
			size_t bytes = (i - first) * PAGE;
			if (pread(memory_fd, buffer + used, bytes, (off_t)(at + first * PAGE)) != (ssize_t)bytes)
				fail("a page cannot be read");
			used += bytes;
		}
		if (write(file_fd, buffer, used) != (ssize_t)used)
			fail("the file cannot be written");
		copied += used;
	}
	return copied;
}

static uint64_t copy_all(const char *pid)
{
	char path[64], line[512];
	uint64_t copied = 0;
	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	FILE *maps = fopen(path, "r");
	if (!maps)
		fail("no such process");
	while (fgets(line, sizeof(line), maps)) {
		unsigned long long from, to;
		char read_bit;
		if (sscanf(line, "%llx-%llx %c", &from, &to, &read_bit) == 3 && read_bit == 'r' && !strstr(line, "[v"))
			copied += copy_area(from, to);
	}
	fclose(maps);
	return copied;
}

static int opened(const char *pid, const char *what)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%s/%s", pid, what);
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		fail("no such process, or no right to it");
	return fd;
}

int main(int argc, char **argv)
{
	const char *pid = option(argc, argv, "pid", "");
	pid_t number = atoi(pid);
	int status;
	buffer = memory(CHUNK);
	memset(buffer, 1, CHUNK);
	memory_fd = opened(pid, "mem"), map_fd = opened(pid, "pagemap");
	file_fd = open(option(argc, argv, "file", ""), O_CREAT | O_TRUNC | O_WRONLY, 0600);
	if (file_fd < 0)
		fail("the file cannot be made");
	/* Stops only the first thread, which is sufficient for the measured subject. SIGSTOP would notify the parent. */
	if (ptrace(PTRACE_SEIZE, number, 0, 0))
		fail("it cannot be traced");
	uint64_t began = clock_ns(CLOCK_MONOTONIC);
	if (ptrace(PTRACE_INTERRUPT, number, 0, 0) || waitpid(number, &status, __WALL) != number)
		fail("it cannot be stopped");
	uint64_t copied = copy_all(pid);
	if (fdatasync(file_fd))
		fail("the file cannot be made durable");
	ptrace(PTRACE_DETACH, number, 0, 0);
	printf("%llu %llu\n", (unsigned long long)copied, (unsigned long long)(clock_ns(CLOCK_MONOTONIC) - began));
	return 0;
}
