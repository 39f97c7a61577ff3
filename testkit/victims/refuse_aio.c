/* Has an asynchronous I/O context (io_setup) with a request in flight: a poll of an empty pipe. */
#include "victim.h"

#include <linux/aio_abi.h>
#include <poll.h>

static aio_context_t context;
static int pipe_ends[2];

static void setup(void)
{
	struct iocb request = { .aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLIN };
	struct iocb *list[] = { &request };
	if (syscall(SYS_io_setup, 16, &context) != 0)
		victim_unsupported("io_setup: %m");
	must(pipe2(pipe_ends, O_CLOEXEC));
	request.aio_fildes = (uint32_t)pipe_ends[0];
	if (syscall(SYS_io_submit, context, 1, list) != 1)
		victim_unsupported("io_submit of a poll: %m");
}

static void verify(void)
{
	struct io_event event;
	struct timespec at_once = { 0, 0 };
	check(syscall(SYS_io_getevents, context, 0, 1, &event, &at_once) == 0, "io_getevents: %m");
}

static void sabotage(void)
{
	must(syscall(SYS_io_destroy, context));
}

static void finish(void)
{
	struct io_event event;
	check(write(pipe_ends[1], "x", 1) == 1, "write: %m");
	check(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1, "no completion: %m");
}

static const struct victim victim = { setup, NULL, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
