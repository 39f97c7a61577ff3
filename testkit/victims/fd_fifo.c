/* Proves that FIFOs are restored with their content and their ends. One FIFO is open for reading
 * and writing through one descriptor, another has separate ends. A new writer that opens the path
 * reaches the old reader. */
#include "victim.h"
#include "victim_stream.h"

static struct victim_stream both = { .name = "both", .seed = 1 };
static struct victim_stream ends = { .name = "ends", .seed = 2 };
static char ends_path[PATH_MAX];

static void setup(void)
{
	char path[PATH_MAX];
	must(mkfifo(victim_path(path, "both"), 0600));
	both.in = both.out = must(open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC));
	victim_stream_send(&both, 3000);
	must(mkfifo(victim_path(ends_path, "ends"), 0600));
	ends.in = must(open(ends_path, O_RDONLY | O_NONBLOCK));
	ends.out = must(open(ends_path, O_WRONLY));
	victim_stream_send(&ends, 7000);
}

static void work(void)
{
	victim_stream_turn(&both, 500);
	victim_stream_turn(&ends, 1 + (size_t)(victim_ticks % 2000));
}

static void verify(void)
{
	struct stat held, named;
	check(fcntl(both.in, F_GETFD) == FD_CLOEXEC && fcntl(ends.in, F_GETFD) == 0, "descriptor flags changed");
	check((fcntl(both.in, F_GETFL) & (O_ACCMODE | O_NONBLOCK)) == (O_RDWR | O_NONBLOCK), "status flags changed");
	check((fcntl(ends.in, F_GETFL) & (O_ACCMODE | O_NONBLOCK)) == (O_RDONLY | O_NONBLOCK), "status flags changed");
	check((fcntl(ends.out, F_GETFL) & (O_ACCMODE | O_NONBLOCK)) == O_WRONLY, "status flags changed");
	must(fstat(ends.in, &held));
	must(stat(ends_path, &named));
	check(held.st_ino == named.st_ino && held.st_dev == named.st_dev, "the path names another fifo");
}

static void sabotage(void)
{
	char byte;
	check(read(both.in, &byte, 1) == 1, "sabotage: %m");
}

static void finish(void)
{
	int writer = must(open(ends_path, O_WRONLY | O_NONBLOCK));
	close(ends.out);
	ends.out = writer;
	victim_stream_send(&ends, 600);
	victim_stream_drain(&ends);
	victim_stream_must_be_empty(&ends);
	/* Only the queued bytes may be read: a short queue shows that bytes are lost. */
	uint64_t left = both.sent - both.received;
	victim_stream_receive(&both, left);
	victim_stream_must_be_empty(&both);
	close(writer);
	char byte;
	check(read(ends.in, &byte, 1) == 0, "no end of file without writers");
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
