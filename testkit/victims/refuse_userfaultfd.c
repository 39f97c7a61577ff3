/* Has a userfaultfd with a registered mapping. */
#include "victim_memory.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#define BYTES (4 * VICTIM_PAGE)

static int handler;
static unsigned char *area;

static void setup(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	handler = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (handler < 0)
		victim_unsupported("userfaultfd: %m");
	must(ioctl(handler, UFFDIO_API, &api));
	area = victim_map(BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	victim_fill(area, BYTES, 1);
	struct uffdio_register range = { .range = { (uintptr_t)area, BYTES }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	must(ioctl(handler, UFFDIO_REGISTER, &range));
}

static void verify(void)
{
	struct uffd_msg message;
	check(victim_differs(area, BYTES, 1) < 0, "the area has another content");
	must_fail_with(read(handler, &message, sizeof(message)), EAGAIN);
}

static void sabotage(void)
{
	area[7] ^= 1;
}

/* Checks that the userfaultfd can still fill missing pages. */
static void finish(void)
{
	static unsigned char page[VICTIM_PAGE] __attribute__((aligned(4096)));
	must(madvise(area, VICTIM_PAGE, MADV_DONTNEED));
	memset(page, 'u', sizeof(page));
	struct uffdio_copy copy = { .dst = (uintptr_t)area, .src = (uintptr_t)page, .len = VICTIM_PAGE };
	must(ioctl(handler, UFFDIO_COPY, &copy));
	check(area[0] == 'u' && area[VICTIM_PAGE - 1] == 'u', "the page was not filled");
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
