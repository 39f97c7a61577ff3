/* Proves that memfds are restored: content, size, name, seals, offset, and a shared mapping that
 * stays connected to its file. One memfd is open only through a mapping. Another memfd can be
 * executed, because no process has it open for writing. */
#include "victim.h"

#include <sys/mman.h>

#define BYTES 65536
#define SCRIPT "#!/bin/true"

static int plain, sealed, program;
static unsigned char *mapped, *only_mapped;
static uint64_t counter;

static void setup(void)
{
	static unsigned char content[BYTES];
	plain = must(memfd_create("victim plain", MFD_CLOEXEC));
	must(ftruncate(plain, BYTES));
	mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, plain, 0);
	check(mapped != MAP_FAILED, "mmap: %m");
	victim_fill(mapped, BYTES, 1);
	memcpy(mapped, &counter, sizeof(counter));
	must(lseek(plain, 4321, SEEK_SET));
	sealed = must(memfd_create("victim sealed", MFD_ALLOW_SEALING));
	victim_fill(content, sizeof(content), 2);
	check(write(sealed, content, sizeof(content)) == sizeof(content), "write: %m");
	must(fcntl(sealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL));
	program = must(memfd_create("victim program", MFD_CLOEXEC));
	check(write(program, SCRIPT, strlen(SCRIPT)) == (ssize_t)strlen(SCRIPT), "write: %m");
	int gone = must(memfd_create("victim mapped only", 0));
	must(ftruncate(gone, BYTES));
	only_mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, gone, 0);
	check(only_mapped != MAP_FAILED, "mmap: %m");
	victim_fill(only_mapped, BYTES, 3);
	close(gone);
}

static void work(void)
{
	uint64_t through_file = 0;
	memcpy(mapped, &counter, sizeof(counter));
	check(pread(plain, &through_file, sizeof(through_file), 0) == sizeof(through_file), "pread: %m");
	check(through_file == counter, "the mapping and the file have come apart");
	counter++;
}

static void check_name(int fd, const char *expected)
{
	char link[64], target[256];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t length = must(readlink(link, target, sizeof(target) - 1));
	target[length] = 0;
	check(strncmp(target, expected, strlen(expected)) == 0, "fd %d is %s, was %s", fd, target, expected);
}

static void check_program(void)
{
	char path[64], *none[] = { NULL }, *arguments[] = { path, NULL };
	int status = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), program);
	pid_t child = must(vfork());
	if (child == 0) {
		execve(path, arguments, none);
		_exit(errno);
	}
	check(waitpid(child, &status, 0) == child && status == 0, "the program ended with status %#x", status);
}

static void verify(void)
{
	static unsigned char content[BYTES];
	struct stat status;
	check_name(plain, "/memfd:victim plain");
	check_name(sealed, "/memfd:victim sealed");
	must(fstat(plain, &status));
	check(status.st_size == BYTES, "size is %lld", (long long)status.st_size);
	check(lseek(plain, 0, SEEK_CUR) == 4321, "offset is %lld", (long long)lseek(plain, 0, SEEK_CUR));
	check(fcntl(plain, F_GETFD) == FD_CLOEXEC && fcntl(sealed, F_GETFD) == 0, "close-on-exec changed");
	check(fcntl(plain, F_GET_SEALS) == F_SEAL_SEAL, "seals of plain are %#x", fcntl(plain, F_GET_SEALS));
	check(fcntl(sealed, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL), "seals are %#x",
	      fcntl(sealed, F_GET_SEALS));
	must_fail_with(pwrite(sealed, "x", 1, 0), EPERM);
	must_fail_with(ftruncate(sealed, 1), EPERM);
	check(pread(sealed, content, sizeof(content), 0) == sizeof(content), "pread: %m");
	check(victim_differs(content, sizeof(content), 2) < 0, "content of the sealed file is wrong");
	check(victim_differs(only_mapped, BYTES, 3) < 0, "content of the mapped file is wrong");
	for (size_t i = 8; i < BYTES; i++)
		check(mapped[i] == victim_byte(1, i), "byte %zu of the plain file is wrong", i);
	check_program();
	work();
}

static void sabotage(void)
{
	only_mapped[12345] ^= 1;
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
