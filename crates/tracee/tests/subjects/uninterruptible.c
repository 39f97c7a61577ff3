/* A program that is nearly always in an uninterruptible read(2). The read writes to a page that is
 * missing. A process outside the tree supplies the page after DELAY_US, through a userfaultfd.
 *
 * Prints "ready", or "unsupported" if userfaultfd is not available. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DELAY_US 40000
#define PAGE 4096

static char content[PAGE] __attribute__((aligned(PAGE)));

/* Supplies missing pages until the subject has ended. */
static void bring(int faults, pid_t subject)
{
	struct pollfd ready = { .fd = faults, .events = POLLIN };
	struct uffd_msg message;

	while (kill(subject, 0) == 0) {
		if (poll(&ready, 1, 100) <= 0 || read(faults, &message, sizeof(message)) != sizeof(message))
			continue;
		usleep(DELAY_US);
		struct uffdio_copy copy = {
			.dst = message.arg.pagefault.address & ~(PAGE - 1UL),
			.src = (unsigned long)content,
			.len = PAGE,
		};
		ioctl(faults, UFFDIO_COPY, &copy);
	}
	_exit(0);
}

int main(void)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), zero = open("/dev/zero", O_RDONLY);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register area = {
		.range = { .start = (unsigned long)page, .len = PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	pid_t self = getpid(), between;

	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &area)) {
		puts("unsupported");
		return 1;
	}
	between = fork();
	if (between == 0) {
		if (fork() == 0) {
			close(STDIN_FILENO);
			close(STDOUT_FILENO);
			close(STDERR_FILENO);
			bring(faults, self);
		}
		_exit(0);
	}
	waitpid(between, NULL, 0);
	puts("ready");
	fflush(stdout);
	for (;;) {
		madvise(page, PAGE, MADV_DONTNEED);
		if (read(zero, page, 1) != 1)
			return 1;
	}
}
