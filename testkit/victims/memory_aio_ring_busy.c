/* Always has requests of asynchronous I/O in flight, which read a file from its disk. */
#include "victim.h"

#include <linux/aio_abi.h>

#define DEPTH 8
#define BLOCK 4096u

static aio_context_t context;
static int file;
static char *buffers;
static uint64_t submitted, completed;

static void submit(void)
{
	uint64_t slot = submitted % DEPTH;
	struct iocb request = { .aio_data = submitted,
				.aio_lio_opcode = IOCB_CMD_PREAD,
				.aio_fildes = (uint32_t)file,
				.aio_buf = (uintptr_t)(buffers + slot * BLOCK),
				.aio_nbytes = BLOCK,
				.aio_offset = (int64_t)(slot * BLOCK) };
	struct iocb *list[] = { &request };
	check(syscall(SYS_io_submit, context, 1, list) == 1, "io_submit: %m");
	submitted++;
}

static void setup(void)
{
	char path[PATH_MAX];
	int writer = must(open(victim_path(path, "blocks"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	check(posix_memalign((void **)&buffers, BLOCK, DEPTH * BLOCK) == 0, "no memory");
	for (int slot = 0; slot < DEPTH; slot++) {
		memset(buffers, 'a' + slot, BLOCK);
		check(write(writer, buffers, BLOCK) == BLOCK, "write: %m");
	}
	must(fsync(writer));
	close(writer);
	file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (file < 0)
		victim_unsupported("O_DIRECT: %m");
	if (syscall(SYS_io_setup, DEPTH, &context) != 0)
		victim_unsupported("io_setup: %m");
	while (submitted < DEPTH)
		submit();
}

/* Waits for the next completion. Completions can come in another order than the requests. */
static void complete(void)
{
	struct io_event event = { 0 };
	struct timespec wait = { 20, 0 };
	long found;
	/* The signal that requests the verdict interrupts the call. */
	do {
		found = syscall(SYS_io_getevents, context, 1, 1, &event, &wait);
	} while (found < 0 && errno == EINTR && victim_told_to_judge);
	check(found == 1, "no completion: %m");
	check(event.res == BLOCK && event.data < submitted, "completion %llu with %lld", (unsigned long long)event.data,
	      (long long)event.res);
	check(buffers[event.data % DEPTH * BLOCK] == (char)('a' + event.data % DEPTH), "another block was read");
	completed++;
}

static void work(void)
{
	complete();
	submit();
}

static void verify(void)
{
	check(submitted - completed == DEPTH, "%llu requests in flight", (unsigned long long)(submitted - completed));
}

static void sabotage(void)
{
	complete();
}

static void finish(void)
{
	struct io_event event;
	struct timespec at_once = { 0, 0 };
	while (completed < submitted)
		complete();
	check(syscall(SYS_io_getevents, context, 0, 1, &event, &at_once) == 0, "one completion too many");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, true };
VICTIM_MAIN(victim)
