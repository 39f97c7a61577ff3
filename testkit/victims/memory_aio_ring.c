/* Has contexts of asynchronous I/O (io_setup): one that was never used, one with unread completions at the
 * end of the ring, and one that each round uses. */
#include "victim.h"

#include <linux/aio_abi.h>
#include <sys/mman.h>

#define UNREAD 3

/* The beginning of a ring, as libaio and fio read it. */
struct ring {
	unsigned int id, events, head, tail;
};

static aio_context_t unused, full, working;
static int file;
static unsigned int full_head, full_tail;
static uint64_t rounds;

static void make(unsigned int requests, aio_context_t *context)
{
	if (syscall(SYS_io_setup, requests, context) != 0)
		victim_unsupported("io_setup: %m");
}

static void submit(aio_context_t context, uint64_t data, char *buffer, size_t length)
{
	struct iocb request = { .aio_data = data,
				.aio_lio_opcode = IOCB_CMD_PREAD,
				.aio_fildes = (uint32_t)file,
				.aio_buf = (uintptr_t)buffer,
				.aio_nbytes = length };
	struct iocb *list[] = { &request };
	check(syscall(SYS_io_submit, context, 1, list) == 1, "io_submit: %m");
}

static void expect(aio_context_t context, uint64_t data, int64_t length)
{
	struct io_event event = { 0 };
	struct timespec wait = { 5, 0 };
	check(syscall(SYS_io_getevents, context, 1, 1, &event, &wait) == 1, "no completion: %m");
	check(event.data == data && event.res == length, "completion %llu with %lld", (unsigned long long)event.data,
	      (long long)event.res);
}

static void use(aio_context_t context, uint64_t data)
{
	char buffer[8] = "";
	submit(context, data, buffer, sizeof(buffer));
	expect(context, data, 4);
	check(strcmp(buffer, "text") == 0, "read %s", buffer);
}

static struct ring ring_of(aio_context_t context)
{
	return *(volatile struct ring *)context;
}

static void setup(void)
{
	static char buffer[8];
	file = must(memfd_create("content", MFD_CLOEXEC));
	check(write(file, "text", 4) == 4, "write: %m");
	make(1, &unused);
	make(200, &full);
	make(4, &working);
	/* The next completions wrap around the end of the ring. */
	for (unsigned int used = 0; used < ring_of(full).events - 1; used++)
		use(full, used);
	for (uint64_t data = 0; data < UNREAD; data++)
		submit(full, 100 + data, buffer, (size_t)data);
	full_head = ring_of(full).head;
	full_tail = ring_of(full).tail;
	check(full_head > full_tail && full_tail == UNREAD - 1, "head %u and tail %u", full_head, full_tail);
}

static void work(void)
{
	use(working, ++rounds);
}

static void verify(void)
{
	struct ring ring = ring_of(full);
	struct io_event event;
	struct timespec at_once = { 0, 0 };
	check(ring.head == full_head && ring.tail == full_tail, "head %u and tail %u", ring.head, ring.tail);
	check(syscall(SYS_io_getevents, unused, 0, 1, &event, &at_once) == 0, "the unused context: %m");
	check(ring_of(working).tail == rounds % ring_of(working).events, "another tail");
}

static void sabotage(void)
{
	expect(full, 100, 0);
}

static void finish(void)
{
	for (uint64_t data = 0; data < UNREAD; data++)
		expect(full, 100 + data, (int64_t)data);
	for (uint64_t data = 0; data < 1000; data++)
		use(full, data);
	use(unused, 1);
	must(syscall(SYS_io_destroy, full));
	must_fail_with(syscall(SYS_io_destroy, full), EINVAL);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
