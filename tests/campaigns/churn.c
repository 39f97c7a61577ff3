/* Test program that continuously changes its memory, descriptors, threads and children, and checks their content.
 *
 * Usage: churn FOLDER [wild]. Without `wild`, shared mappings are never removed, and only their content changes. With
 * `wild`, the program also creates and removes shared mappings and memfd mappings, and creates children, threads and
 * pipes more often. The program creates and reads the file FOLDER/constants. It writes errors to the file
 * FOLDER/wrong.PID.
 *
 * There are three worlds: one for each of two threads of the first process, and one for a second process. A world is a
 * set of objects: mappings of several types, a pipe, an eventfd, open files, pending signals, short-lived children and
 * short-lived threads. A shadow (a value that determines the expected content) exists for every page. The two processes
 * exchange messages through a socket pair. All shadows are in private memory, so that an image contains each page
 * together with its shadow.
 *
 * After SIGUSR1, the program continues for JUDGE_MS. Then it checks all objects of all worlds, waits for its children,
 * and exits with 42. At any error, the program exits with 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / 8)
#define REGIONS 12
/* Number of regions that are shared mappings from the beginning, unless `wild` is given. They are never unmapped. */
#define LASTING 4
#define PAGES_MAX 48
#define FILES 4
#define CHILDREN 2
#define SIGNALS_MAX 6
#define PIPE_MAX 30000
#define REPLIES_MAX 32
#define JUDGE_MS 700
#define GOOD 42
#define CONSTANTS (64 * 1024)
#define REGISTER_ROUNDS 4000

enum kind { NONE, PRIVATE, SHARED, MEMFD };

struct region {
	unsigned char *start;
	unsigned pages;
	enum kind kind;
	int protection, fd;
	uint64_t shadow[PAGES_MAX];
};

struct world {
	uint64_t state, serial, steps;
	struct region regions[REGIONS];
	int pipe[2];
	uint64_t pipe_written, pipe_read;
	int counter;
	uint64_t counted;
	struct {
		int fd;
		off_t at;
	} files[FILES];
	pid_t children[CHILDREN];
	pthread_t helper;
	int has_helper;
	uint64_t helper_seed;
	uint64_t signals_sent, signals_taken;
	uint64_t asked, replied;
	int peer;
};

static struct world worlds[3];
static char folder[512];
static volatile sig_atomic_t is_judged;
static volatile int is_over;
static pid_t other;
static int is_wild;
static double expected_real;
static uint64_t expected_whole;
static __thread uint64_t own_word;

static void wrong(const char *format, ...)
{
	char text[512], path[600];
	va_list words;
	va_start(words, format);
	int length = vsnprintf(text, sizeof(text) - 1, format, words);
	va_end(words);
	text[length++] = '\n';
	snprintf(path, sizeof(path), "%s/wrong.%d", folder, getpid());
	int fd = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, text, (size_t)length) != length)
		_exit(3);
	_exit(1);
}

static uint64_t mix(uint64_t of)
{
	of += 0x9e3779b97f4a7c15u;
	of = (of ^ (of >> 30)) * 0xbf58476d1ce4e5b9u;
	of = (of ^ (of >> 27)) * 0x94d049bb133111ebu;
	return of ^ (of >> 31);
}

static uint64_t draw(struct world *world, uint64_t below)
{
	uint64_t *state = &world->state;
	*state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
	return *state % below;
}

static void nap(unsigned microseconds)
{
	struct timespec time = { .tv_nsec = microseconds * 1000l };
	nanosleep(&time, NULL);
}

static uint64_t now_ms(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return (uint64_t)at.tv_sec * 1000 + (uint64_t)at.tv_nsec / 1000000;
}

/* Memory ------------------------------------------------------------------------------------------------------------ */

static void verify_page(struct world *world, struct region *region, unsigned page)
{
	uint64_t *words = (uint64_t *)(region->start + (size_t)page * PAGE), tag = region->shadow[page];
	for (unsigned i = 0; i < WORDS; i++) {
		uint64_t wanted = tag ? mix(tag + i) : 0;
		if (words[i] != wanted)
			wrong("world %d, step %lu: region %d of kind %d, page %u of %u at %p, word %u: %lx, not %lx (tag %lx)",
			      (int)(world - worlds), world->steps, (int)(region - world->regions), region->kind, page,
			      region->pages, (void *)words, i, words[i], wanted, tag);
	}
}

static void protect(struct region *region, int protection)
{
	if (region->protection != protection && mprotect(region->start, (size_t)region->pages * PAGE, protection))
		wrong("mprotect: %d", errno);
	region->protection = protection;
}

static void verify_region(struct world *world, struct region *region)
{
	if (region->kind == NONE)
		return;
	if (region->protection == PROT_NONE)
		protect(region, PROT_READ);
	for (unsigned page = 0; page < region->pages; page++)
		verify_page(world, region, page);
}

static void fill(struct world *world, struct region *region, unsigned page)
{
	uint64_t *words = (uint64_t *)(region->start + (size_t)page * PAGE);
	uint64_t tag = region->shadow[page] = ++world->serial << 16;
	for (unsigned i = 0; i < WORDS; i++)
		words[i] = mix(tag + i);
}

static void map(struct world *world, struct region *region, enum kind kind)
{
	region->kind = kind;
	region->pages = 1 + (unsigned)draw(world, PAGES_MAX);
	region->protection = PROT_READ | PROT_WRITE;
	region->fd = -1;
	size_t bytes = (size_t)region->pages * PAGE;
	if (region->kind == MEMFD) {
		region->fd = memfd_create("churn", MFD_CLOEXEC);
		if (region->fd < 0 || ftruncate(region->fd, (off_t)bytes))
			wrong("memfd: %d", errno);
	}
	int flags = region->kind == PRIVATE ? MAP_PRIVATE | MAP_ANONYMOUS :
		    region->kind == SHARED  ? MAP_SHARED | MAP_ANONYMOUS :
					      MAP_SHARED;
	region->start = mmap(NULL, bytes, region->protection, flags, region->fd, 0);
	if (region->start == MAP_FAILED)
		wrong("mmap: %d", errno);
	memset(region->shadow, 0, sizeof(region->shadow));
}

static void unmap(struct world *world, struct region *region)
{
	verify_region(world, region);
	if (munmap(region->start, (size_t)region->pages * PAGE))
		wrong("munmap: %d", errno);
	if (region->kind == MEMFD && close(region->fd))
		wrong("the descriptor %d of a memfd was gone", region->fd);
	region->kind = NONE;
}

static void resize(struct world *world, struct region *region)
{
	unsigned pages = 1 + (unsigned)draw(world, PAGES_MAX);
	if (region->kind != PRIVATE)
		pages = region->pages;
	void *to = NULL;
	int flags = MREMAP_MAYMOVE;
	if (draw(world, 2)) {
		to = mmap(NULL, (size_t)pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		flags |= MREMAP_FIXED;
	}
	region->start = mremap(region->start, (size_t)region->pages * PAGE, (size_t)pages * PAGE, flags, to);
	if (region->start == MAP_FAILED)
		wrong("mremap: %d", errno);
	for (unsigned page = region->pages; page < pages; page++)
		region->shadow[page] = 0;
	region->pages = pages;
}

static void discard(struct world *world, struct region *region)
{
	unsigned first = (unsigned)draw(world, region->pages), count = 1 + (unsigned)draw(world, region->pages - first);
	int advice = region->kind == PRIVATE ? MADV_DONTNEED : MADV_REMOVE;
	protect(region, PROT_READ | PROT_WRITE);
	if (madvise(region->start + (size_t)first * PAGE, (size_t)count * PAGE, advice))
		wrong("madvise: %d", errno);
	memset(region->shadow + first, 0, count * sizeof(*region->shadow));
}

static void memory_step(struct world *world)
{
	static const int protections[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE };
	struct region *region = &world->regions[draw(world, REGIONS)];
	uint64_t drawn = draw(world, 12);
	int is_lasting = !is_wild && region->kind > PRIVATE;
	if (region->kind == NONE)
		return map(world, region, is_wild ? (enum kind)(1 + draw(world, 3)) : PRIVATE);
	if (drawn == 0 && !is_lasting)
		return unmap(world, region);
	if (drawn == 1 && !is_lasting)
		return resize(world, region);
	if (drawn == 2)
		return discard(world, region);
	if (drawn == 3)
		return protect(region, protections[draw(world, 3)]);
	if (drawn < 6)
		return verify_region(world, region);
	protect(region, PROT_READ | PROT_WRITE);
	for (uint64_t count = 1 + draw(world, 6); count; count--) {
		unsigned page = (unsigned)draw(world, region->pages);
		verify_page(world, region, page);
		fill(world, region, page);
	}
}

/* Descriptors ------------------------------------------------------------------------------------------------------- */

static void new_pipe(struct world *world)
{
	if (pipe2(world->pipe, O_NONBLOCK | O_CLOEXEC))
		wrong("pipe2: %d", errno);
}

static void pipe_out(struct world *world, uint64_t count)
{
	unsigned char bytes[2048];
	while (count && world->pipe_read < world->pipe_written) {
		uint64_t there = world->pipe_written - world->pipe_read;
		there = there < count ? there : count;
		there = there < sizeof(bytes) ? there : sizeof(bytes);
		ssize_t got = read(world->pipe[0], bytes, there);
		if (got != (ssize_t)there)
			wrong("a pipe gave %zd of %lu bytes: %d", got, there, errno);
		for (ssize_t i = 0; i < got; i++)
			if (bytes[i] != (unsigned char)mix(world->pipe_read + (uint64_t)i))
				wrong("byte %lu of a pipe", world->pipe_read + (uint64_t)i);
		world->pipe_read += there;
		count -= there;
	}
}

static void pipe_step(struct world *world)
{
	unsigned char bytes[2048];
	uint64_t drawn = draw(world, is_wild ? 12 : 600), count = 1 + draw(world, sizeof(bytes));
	if (drawn == 0) {
		pipe_out(world, PIPE_MAX);
		if (read(world->pipe[0], bytes, 1) != -1 || errno != EAGAIN)
			wrong("a pipe holds more than was written");
		if (close(world->pipe[0]) || close(world->pipe[1]))
			wrong("an end of a pipe was gone");
		return new_pipe(world);
	}
	if (drawn == 1) {
		int twin = fcntl(world->pipe[0], F_DUPFD_CLOEXEC, 100 + (int)draw(world, 50));
		if (twin < 0 || close(world->pipe[0]))
			wrong("dup: %d", errno);
		world->pipe[0] = twin;
		return;
	}
	if (drawn % 12 < 7 && world->pipe_written - world->pipe_read + count < PIPE_MAX) {
		for (uint64_t i = 0; i < count; i++)
			bytes[i] = (unsigned char)mix(world->pipe_written + i);
		if (write(world->pipe[1], bytes, count) != (ssize_t)count)
			wrong("a pipe did not take %lu bytes: %d", count, errno);
		world->pipe_written += count;
		return;
	}
	pipe_out(world, count);
}

static void counter_step(struct world *world)
{
	uint64_t value = 1 + draw(world, 1000);
	if (draw(world, 3)) {
		if (write(world->counter, &value, sizeof(value)) != sizeof(value))
			wrong("eventfd: %d", errno);
		world->counted += value;
		return;
	}
	ssize_t got = read(world->counter, &value, sizeof(value));
	if (world->counted ? got != sizeof(value) || value != world->counted : got != -1 || errno != EAGAIN)
		wrong("an event counter gave %zd, %lu, not %lu", got, value, world->counted);
	world->counted = 0;
}

static unsigned char constant(off_t at)
{
	return (unsigned char)mix((uint64_t)at ^ 0x5555);
}

static void file_step(struct world *world)
{
	unsigned char bytes[512];
	char path[600];
	uint64_t slot = draw(world, FILES);
	int fd = world->files[slot].fd;
	if (fd < 0) {
		snprintf(path, sizeof(path), "%s/constants", folder);
		world->files[slot].fd = open(path, O_RDONLY | O_CLOEXEC);
		world->files[slot].at = 0;
		if (world->files[slot].fd < 0)
			wrong("open: %d", errno);
		return;
	}
	if (lseek(fd, 0, SEEK_CUR) != world->files[slot].at)
		wrong("descriptor %d is at %ld, not %ld", fd, (long)lseek(fd, 0, SEEK_CUR), (long)world->files[slot].at);
	if (draw(world, 4) == 0) {
		if (close(fd))
			wrong("close: %d", errno);
		world->files[slot].fd = -1;
		return;
	}
	if (world->files[slot].at + (off_t)sizeof(bytes) > CONSTANTS)
		world->files[slot].at = lseek(fd, (off_t)draw(world, 1000), SEEK_SET);
	if (read(fd, bytes, sizeof(bytes)) != sizeof(bytes))
		wrong("read: %d", errno);
	for (unsigned i = 0; i < sizeof(bytes); i++)
		if (bytes[i] != constant(world->files[slot].at + i))
			wrong("byte %ld of a file", (long)world->files[slot].at + i);
	world->files[slot].at += (off_t)sizeof(bytes);
}

/* Registers, children, threads, signals ---------------------------------------------------------------------------- */

static void compute(double *real, uint64_t *whole)
{
	double a = 1, b = 0.5, c = 3, d = 7;
	uint64_t e = 1, f = 2, g = 3;
	for (unsigned i = 1; i <= REGISTER_ROUNDS; i++) {
		a = a * 0.999 + b, b = b * 0.5 + 1.0 / i, c = c + a * b, d = d * 0.9 + c * 1e-3;
		e = mix(e + f), f = f * 31 + g, g ^= e >> 7;
	}
	*real = a + b + c + d;
	*whole = e ^ f ^ g;
}

static void registers_step(void)
{
	double real;
	uint64_t whole;
	compute(&real, &whole);
	if (memcmp(&real, &expected_real, sizeof(real)) || whole != expected_whole)
		wrong("registers: %a and %lx, not %a and %lx", real, whole, expected_real, expected_whole);
}

static void child(struct world *world)
{
	for (unsigned turn = 0; turn < 3; turn++) {
		for (unsigned i = 0; i < REGIONS; i++) {
			struct region *region = &world->regions[i];
			if (region->kind != PRIVATE)
				continue;
			verify_region(world, region);
			protect(region, PROT_READ | PROT_WRITE);
			fill(world, region, (unsigned)draw(world, region->pages));
		}
		nap(500 + (unsigned)draw(world, 5000));
	}
	_exit(GOOD);
}

/* Reaps the children of a world that have ended, and checks their exit status. With `waits`, first waits for all. */
static void collect(struct world *world, int waits)
{
	for (unsigned i = 0; i < CHILDREN; i++) {
		int status;
		pid_t found = world->children[i] ? waitpid(world->children[i], &status, waits ? 0 : WNOHANG) : 0;
		if (found == 0)
			continue;
		if (found != world->children[i] || !WIFEXITED(status) || WEXITSTATUS(status) != GOOD)
			wrong("child %d: %d, status %x, error %d", world->children[i], found, status, errno);
		world->children[i] = 0;
	}
}

static void children_step(struct world *world)
{
	uint64_t slot = draw(world, CHILDREN);
	collect(world, 0);
	if (world->children[slot])
		return;
	pid_t born = fork();
	if (born < 0)
		wrong("fork: %d", errno);
	if (!born)
		child(world);
	world->children[slot] = born;
}

static void *help(void *seed)
{
	uint64_t first = *(uint64_t *)seed, local[64];
	own_word = first;
	for (unsigned i = 0; i < 64; i++)
		local[i] = mix(first + i);
	for (unsigned turn = 0; turn < 4; turn++) {
		nap(1500);
		for (unsigned i = 0; i < 64; i++)
			if (local[i] != mix(first + i))
				wrong("the stack of a thread");
		if (own_word != first)
			wrong("the own word of a thread");
		registers_step();
	}
	return (void *)mix(first);
}

static void join(struct world *world)
{
	void *result;
	if (pthread_join(world->helper, &result) || result != (void *)mix(world->helper_seed))
		wrong("the result of a thread");
	world->has_helper = 0;
}

static void thread_step(struct world *world)
{
	if (world->has_helper)
		return join(world);
	world->helper_seed = draw(world, UINT64_MAX);
	int error = pthread_create(&world->helper, NULL, help, &world->helper_seed);
	if (error)
		wrong("pthread_create: %d", error);
	world->has_helper = 1;
}

static void take_signal(struct world *world)
{
	static const struct timespec none;
	sigset_t set;
	siginfo_t info;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	int found = sigtimedwait(&set, &info, &none);
	if (world->signals_taken == world->signals_sent) {
		if (found != -1 || errno != EAGAIN)
			wrong("a signal that nobody sent: %d", found);
		return;
	}
	if (found != SIGRTMIN || info.si_value.sival_int != (int)(mix(world->signals_taken) & 0xffffff))
		wrong("signal %lu of %lu: %d, %d, error %d", world->signals_taken, world->signals_sent, found,
		      info.si_value.sival_int, errno);
	world->signals_taken++;
}

static void signal_step(struct world *world)
{
	if (world->signals_sent - world->signals_taken >= SIGNALS_MAX || draw(world, 2))
		return take_signal(world);
	union sigval value = { .sival_int = (int)(mix(world->signals_sent) & 0xffffff) };
	if (pthread_sigqueue(pthread_self(), SIGRTMIN, value))
		wrong("pthread_sigqueue: %d", errno);
	world->signals_sent++;
}

/* The two processes ------------------------------------------------------------------------------------------------- */

static void reply(struct world *world)
{
	uint64_t number;
	while (recv(world->peer, &number, sizeof(number), MSG_DONTWAIT) == sizeof(number)) {
		if (number != world->replied++)
			wrong("question %lu, not %lu", number, world->replied - 1);
		number = mix(number);
		if (send(world->peer, &number, sizeof(number), MSG_NOSIGNAL) != sizeof(number))
			wrong("send: %d", errno);
	}
}

/* Receives and checks the available replies. With `waits`, waits for the replies to all requests. */
static void answers(struct world *world, int waits)
{
	uint64_t number;
	while (world->replied < world->asked) {
		ssize_t got = recv(world->peer, &number, sizeof(number), waits ? 0 : MSG_DONTWAIT);
		if (got < 0 && errno == EAGAIN && !waits)
			return;
		if (got < 0 && errno == EINTR)
			continue;
		if (got != sizeof(number) || number != mix(world->replied))
			wrong("answer %lu of %lu: %zd, %lx, error %d", world->replied, world->asked, got, number, errno);
		world->replied++;
	}
}

static void talk_step(struct world *world)
{
	if (world == &worlds[2])
		return reply(world);
	if (world == &worlds[1])
		return;
	answers(world, 0);
	if (world->asked - world->replied >= REPLIES_MAX)
		return;
	if (send(world->peer, &world->asked, sizeof(world->asked), MSG_NOSIGNAL) != sizeof(world->asked))
		wrong("send: %d", errno);
	world->asked++;
}

/* Worlds ------------------------------------------------------------------------------------------------------------ */

static void step(struct world *world)
{
	uint64_t drawn = draw(world, 1000);
	world->steps++;
	if (drawn < 580)
		memory_step(world);
	else if (drawn < 680)
		pipe_step(world);
	else if (drawn < 730)
		counter_step(world);
	else if (drawn < 790)
		file_step(world);
	else if (drawn < (is_wild ? 830 : 792))
		children_step(world);
	else if (drawn < (is_wild ? 870 : 796))
		thread_step(world);
	else if (drawn < 900)
		signal_step(world);
	else if (drawn < 960)
		talk_step(world);
	else
		registers_step();
	if (drawn % 2 == 0)
		nap(1000);
}

static void finish(struct world *world)
{
	for (unsigned i = 0; i < REGIONS; i++)
		verify_region(world, &world->regions[i]);
	pipe_out(world, PIPE_MAX);
	collect(world, 1);
	if (world->has_helper)
		join(world);
	while (world->signals_taken < world->signals_sent)
		take_signal(world);
	for (unsigned turn = 0; turn < 50; turn++) {
		file_step(world);
		counter_step(world);
	}
	if (world == &worlds[0])
		answers(world, 1);
}

static void set_up(struct world *world)
{
	world->state = 88172645463325252u + (uint64_t)(world - worlds) * 7919;
	new_pipe(world);
	world->counter = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	for (unsigned i = 0; i < FILES; i++)
		world->files[i].fd = -1;
	for (unsigned i = 0; i < LASTING && !is_wild; i++)
		map(world, &world->regions[i], SHARED);
}

static void *live(void *argument)
{
	struct world *world = argument;
	while (!is_over)
		step(world);
	finish(world);
	return NULL;
}

static void judge(int number)
{
	(void)number;
	is_judged = 1;
}

static void second_process(void)
{
	struct world *world = &worlds[2];
	while (!is_judged) {
		step(world);
		reply(world);
	}
	finish(world);
	_exit(GOOD);
}

static void make_constants(void)
{
	static unsigned char bytes[CONSTANTS];
	char path[600];
	for (off_t i = 0; i < CONSTANTS; i++)
		bytes[i] = constant(i);
	snprintf(path, sizeof(path), "%s/constants", folder);
	int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, bytes, sizeof(bytes)) != sizeof(bytes) || close(fd))
		wrong("constants: %d", errno);
}

int main(int argc, char **argv)
{
	if (argc != 2 && argc != 3)
		return 2;
	is_wild = argc == 3 && !strcmp(argv[2], "wild");
	snprintf(folder, sizeof(folder), "%s", argv[1]);
	struct sigaction action = { .sa_handler = judge, .sa_flags = SA_RESTART };
	sigaction(SIGUSR1, &action, NULL);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	compute(&expected_real, &expected_whole);
	make_constants();
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		wrong("socketpair: %d", errno);
	worlds[0].peer = pair[0], worlds[2].peer = pair[1];
	other = fork();
	if (!other) {
		close(pair[0]);
		set_up(&worlds[2]);
		second_process();
	}
	close(pair[1]);
	pthread_t threads[2];
	for (unsigned i = 0; i < 2; i++) {
		set_up(&worlds[i]);
		if (pthread_create(&threads[i], NULL, live, &worlds[i]))
			wrong("pthread_create");
	}
	while (!is_judged)
		nap(5000);
	for (uint64_t until = now_ms() + JUDGE_MS; now_ms() < until;)
		nap(5000);
	is_over = 1;
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	int status;
	if (kill(other, SIGUSR1) || waitpid(other, &status, 0) != other || !WIFEXITED(status) || WEXITSTATUS(status) != GOOD)
		wrong("the other process: status %x", status);
	return GOOD;
}
