/* Changes its memory in many ways, and stores the expected content (the shadow).
 *
 * Usage: dirtier [MIB] FILE. In each round, it writes the number of the round, or the error, to
 * FILE. The shadow is in private memory, so that a checkpoint contains the shadow together with the
 * memory that it describes. With MIB, the program has this amount of additional memory that stays
 * mapped, and changes some of its pages in each round. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define REGIONS 24
#define PAGES_MAX 96
#define ROUND_STEPS 200

static struct region {
	unsigned char *start;
	unsigned pages;
	uint64_t shadow[PAGES_MAX];
} regions[REGIONS];
static uint64_t state = 88172645463325252u, serial;
static unsigned char *ballast;
static uint64_t *ballast_shadow, ballast_pages;
static unsigned long rounds;
static int said;

static uint64_t draw(uint64_t below)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return state % below;
}

/* Always writes the same number of bytes, because a restore refuses a file that has grown. */
static void say(const char *what, unsigned long number)
{
	char line[64];
	memset(line, ' ', sizeof(line));
	line[snprintf(line, sizeof(line), "%s %lu", what, number)] = ' ';
	if (pwrite(said, line, sizeof(line), 0) != sizeof(line))
		_exit(3);
}

static uint64_t *first(struct region *region, unsigned page)
{
	return (uint64_t *)(region->start + (size_t)page * PAGE);
}

static void verify(struct region *region, unsigned page)
{
	uint64_t *words = first(region, page);
	if (words[0] == region->shadow[page] && words[PAGE / 8 - 1] == region->shadow[page])
		return;
	say("bad", rounds);
	_exit(1);
}

static void fill(struct region *region, unsigned page)
{
	uint64_t *words = first(region, page);
	words[0] = words[PAGE / 8 - 1] = region->shadow[page] = ++serial;
}

static void map(struct region *region)
{
	region->pages = 1 + draw(PAGES_MAX);
	region->start = mmap(NULL, (size_t)region->pages * PAGE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(region->shadow, 0, sizeof(region->shadow));
}

static void grow_or_move(struct region *region)
{
	unsigned pages = 1 + draw(PAGES_MAX);
	region->start =
		mremap(region->start, (size_t)region->pages * PAGE, (size_t)pages * PAGE, MREMAP_MAYMOVE);
	if (region->start == MAP_FAILED)
		say("bad mremap", rounds), _exit(4);
	for (unsigned page = region->pages < pages ? region->pages : pages; page < PAGES_MAX; page++)
		region->shadow[page] = 0;
	region->pages = pages;
}

static void discard(struct region *region)
{
	unsigned from = draw(region->pages), count = 1 + draw(region->pages - from);
	madvise(first(region, from), (size_t)count * PAGE, MADV_DONTNEED);
	memset(region->shadow + from, 0, count * sizeof(uint64_t));
}

static void step(void)
{
	struct region *region = &regions[draw(REGIONS)];
	unsigned page = draw(region->pages);
	switch (draw(64)) {
	case 0:
		munmap(region->start, (size_t)region->pages * PAGE);
		map(region);
		break;
	case 1:
		grow_or_move(region);
		break;
	case 2:
		discard(region);
		break;
	case 3:
		mprotect(region->start, (size_t)region->pages * PAGE, PROT_READ);
		verify(region, page);
		mprotect(region->start, (size_t)region->pages * PAGE, PROT_READ | PROT_WRITE);
		break;
	case 4: {
		/* Allocates and frees a block of random size, so that the heap grows and shrinks. */
		size_t length = 1 + draw(300000);
		unsigned char *block = malloc(length);
		memset(block, 0xa5, length);
		if (block[draw(length)] != 0xa5)
			say("bad", rounds), _exit(1);
		free(block);
		break;
	}
	default:
		verify(region, page);
		fill(region, page);
	}
}

static void verify_all(void)
{
	for (unsigned index = 0; index < REGIONS; index++)
		for (unsigned page = 0; page < regions[index].pages; page++)
			verify(&regions[index], page);
}

/* Forks a child with the same memory. The child changes its own copy for some milliseconds. It can
 * end after later children have started. */
static void fork_one(void)
{
	if (fork() != 0)
		return;
	for (uint64_t left = 1 + draw(30); left > 0; left--) {
		for (unsigned count = 0; count < 20; count++)
			step();
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	verify_all();
	_exit(0);
}

static void reap(void)
{
	int status = 0;
	while (waitpid(-1, &status, WNOHANG) > 0)
		if (status != 0)
			say("bad child", rounds), _exit(2);
}

static void set_ballast(uint64_t page)
{
	uint64_t *words = (uint64_t *)(ballast + page * PAGE);
	words[0] = words[PAGE / 8 - 1] = ballast_shadow[page] = ++serial;
}

static void fill_ballast(uint64_t mib)
{
	ballast_pages = mib * ((1 << 20) / PAGE);
	ballast = mmap(NULL, ballast_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ballast_shadow = calloc(ballast_pages, sizeof(*ballast_shadow));
	if (ballast == MAP_FAILED || !ballast_shadow)
		_exit(4);
	for (uint64_t page = 0; page < ballast_pages; page++)
		set_ballast(page);
}

static void change_ballast(void)
{
	for (uint64_t page = 0; page < ballast_pages; page++) {
		uint64_t *words = (uint64_t *)(ballast + page * PAGE);
		if (words[0] != ballast_shadow[page] || words[PAGE / 8 - 1] != ballast_shadow[page]) {
			say("bad ballast", page);
			_exit(1);
		}
	}
	for (unsigned count = 0; count < ROUND_STEPS && ballast_pages; count++)
		set_ballast(draw(ballast_pages));
}

int main(int argc, char **argv)
{
	uint64_t mib = argc > 2 ? strtoul(argv[1], NULL, 10) : 0;
	if (mib)
		fill_ballast(mib);
	said = open(argv[argc - 1], O_WRONLY | O_CREAT, 0600);
	for (unsigned index = 0; index < REGIONS; index++)
		map(&regions[index]);
	for (;;) {
		for (unsigned count = 0; count < ROUND_STEPS; count++)
			step();
		if (draw(16) == 0)
			fork_one();
		reap();
		verify_all();
		change_ballast();
		say("round", ++rounds);
		nanosleep(&(struct timespec){ .tv_nsec = 300000 }, NULL);
	}
}
