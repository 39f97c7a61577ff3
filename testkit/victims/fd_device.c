/* Proves that character devices (/dev/null, zero, full, random, urandom) are restored as the same
 * devices, with access mode and flags. The victim reads from these devices and writes to them. */
#include "victim.h"

#include <sys/sysmacros.h>

struct device {
	const char *path;
	int flags;
	int fd;
	dev_t number;
};

static struct device devices[] = {
	{ "/dev/null", O_RDWR | O_CLOEXEC, -1, 0 }, { "/dev/null", O_WRONLY | O_APPEND, -1, 0 },
	{ "/dev/zero", O_RDONLY, -1, 0 },           { "/dev/full", O_WRONLY, -1, 0 },
	{ "/dev/urandom", O_RDONLY, -1, 0 },        { "/dev/random", O_RDONLY | O_NONBLOCK, -1, 0 },
};
#define DEVICES (sizeof(devices) / sizeof(devices[0]))

static void setup(void)
{
	for (size_t i = 0; i < DEVICES; i++) {
		struct stat status;
		devices[i].fd = must(open(devices[i].path, devices[i].flags));
		must(fstat(devices[i].fd, &status));
		devices[i].number = status.st_rdev;
	}
}

static void work(void)
{
	unsigned char bytes[64];
	memset(bytes, 0xff, sizeof(bytes));
	check(write(devices[0].fd, bytes, sizeof(bytes)) == sizeof(bytes), "null: write: %m");
	check(read(devices[0].fd, bytes, sizeof(bytes)) == 0, "null: reads something");
	check(read(devices[2].fd, bytes, sizeof(bytes)) == sizeof(bytes), "zero: read: %m");
	for (size_t i = 0; i < sizeof(bytes); i++)
		check(bytes[i] == 0, "zero: byte %zu is %u", i, bytes[i]);
	must_fail_with(write(devices[3].fd, bytes, 1), ENOSPC);
	check(read(devices[4].fd, bytes, sizeof(bytes)) == sizeof(bytes), "urandom: read: %m");
	int different = 0;
	for (size_t i = 1; i < sizeof(bytes); i++)
		different += bytes[i] != bytes[0];
	check(different > 0, "urandom: always the same byte");
}

static void verify(void)
{
	for (size_t i = 0; i < DEVICES; i++) {
		const struct device *device = &devices[i];
		struct stat status;
		must(fstat(device->fd, &status));
		check(S_ISCHR(status.st_mode) && status.st_rdev == device->number, "%s: is device %u:%u", device->path,
		      major(status.st_rdev), minor(status.st_rdev));
		int flags = must(fcntl(device->fd, F_GETFL)) & (O_ACCMODE | O_APPEND | O_NONBLOCK);
		check(flags == (device->flags & (O_ACCMODE | O_APPEND | O_NONBLOCK)), "%s: flags are %#x", device->path,
		      (unsigned)flags);
		check(fcntl(device->fd, F_GETFD) == (device->flags & O_CLOEXEC ? FD_CLOEXEC : 0),
		      "%s: close-on-exec changed", device->path);
	}
}

static void sabotage(void)
{
	must(dup2(devices[0].fd, devices[2].fd));
}

static const struct victim victim = { setup, work, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
