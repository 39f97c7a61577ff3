/* A subject that knows the expected content of each of its pages, and uses its memory as programs
 * do.
 *
 *   lazy REPORT GO MIB
 *
 * MIB is the size of the memory. REPORT is a file of one page, which the subject maps. Its words
 * are:
 *
 *   0  number of the round
 *   1  1 after a check has failed
 *   2  number of the first wrong page, or 1000000 plus the number of a failed call
 *   3  expected `value` of this page (see `struct slot`)
 *   4  content of the wrong word
 *   5  address of the page, or of its copy
 *   6  index of the wrong word in the page
 *   7  number of failed moves
 *
 * The subject waits until the file GO contains a kind and a seed:
 *
 *   watch SEED     checks all pages in a pseudo-random order, again and again; each pass is a round
 *   churn SEED     Threads discard, unmap, map, move, write and protect their own pages, and pass them to
 *                  system calls. They also fork children, which check the whole memory. The subject exits
 *                  with 0 if all pages were correct at the end, and otherwise with 3. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define THREADS 3
#define STEPS 400
#define SPAN_MAX 48
#define SLOTS_MAX (1ul << 18)

/* The content of a page. If `value` is 0, all words are 0. Otherwise word `i` is `value` + `i`. */
struct slot { unsigned char *at; uint64_t value; int mapping, is_mapped; };

static volatile uint64_t *report;
static struct slot slots[SLOTS_MAX];
static uint64_t count, own;
static pthread_rwlock_t forking = PTHREAD_RWLOCK_INITIALIZER;

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 27, x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t draw(uint64_t *state, uint64_t limit)
{
	*state += 0x9e3779b97f4a7c15u;
	return mix(*state) % limit;
}

static void fill(struct slot *slot, uint64_t value)
{
	uint64_t *words = (uint64_t *)slot->at;
	slot->value = value;
	for (uint64_t i = 0; i < PAGE / 8; i++)
		words[i] = value + i;
}

__attribute__((noreturn)) static void corrupt(uint64_t number)
{
	if (!__sync_lock_test_and_set((uint64_t *)report + 1, 1))
		report[2] = number;
	_exit(3);
}

static void check_words(uint64_t number, const uint64_t *words)
{
	uint64_t value = slots[number].value;
	for (uint64_t i = 0; i < PAGE / 8; i += 73) {
		uint64_t found = words[i];
		if (found != (value ? value + i : 0)) {
			report[3] = value, report[4] = found, report[5] = (uint64_t)words, report[6] = i;
			corrupt(number);
		}
	}
}

static void check(uint64_t number)
{
	if (slots[number].is_mapped)
		check_words(number, (const uint64_t *)slots[number].at);
}

static void check_all(uint64_t state)
{
	uint64_t step = 7919 + 2 * draw(&state, 1000), at = draw(&state, count);
	for (uint64_t i = 0; i < count; i++, at = (at + step) % count)
		check(at);
}

/* Returns the number of pages, at most `most`, that follow each other from page `first` on and were
 * mapped by one call. The kernel merges mappings of several calls only sometimes. An mremap of
 * several mappings can fail after a part of them has moved (Linux 6.17). */
static uint64_t neighbours(uint64_t first, uint64_t end, uint64_t most)
{
	uint64_t n = 0;
	for (struct slot *at = slots + first; n < most && first + n < end && at->is_mapped; n++, at++)
		if (at->at != slots[first].at + n * PAGE || at->mapping != slots[first].mapping)
			break;
	return n;
}

static void must(int is_so, uint64_t what)
{
	if (!is_so)
		corrupt(1000000 + what);
}

static void through_kernel(uint64_t first, uint64_t n, uint64_t value)
{
	static __thread uint64_t copy[PAGE / 8];
	int ends[2];
	(void)n;
	must(!pipe(ends), 1);
	must(write(ends[1], slots[first].at, PAGE) == PAGE && read(ends[0], copy, PAGE) == PAGE, 2);
	check_words(first, copy);
	for (uint64_t i = 0; i < PAGE / 8; i++)
		copy[i] = value + i;
	must(write(ends[1], copy, PAGE) == PAGE && read(ends[0], slots[first].at, PAGE) == PAGE, 3);
	slots[first].value = value;
	close(ends[0]), close(ends[1]);
}

static void move(uint64_t first, uint64_t n)
{
	unsigned char *from = slots[first].at;
	unsigned char *to = mmap(0, n * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(to != MAP_FAILED, 4);
	if (mremap(from, n * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) {
		/* A part of the range may have moved, and the new position of each page is unknown.
		 * These pages are not used any more. */
		for (uint64_t i = 0; i < n; i++)
			slots[first + i].is_mapped = 0;
		report[7]++;
		return;
	}
	for (uint64_t i = 0; i < n; i++)
		slots[first + i].at = to + i * PAGE;
	/* Maps other memory at the old address at once. It must be zero. */
	unsigned char *again = mmap(from, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (again == from) {
		for (uint64_t i = 0; i < n * PAGE; i += PAGE)
			must(!again[i], 5);
		munmap(again, n * PAGE);
	} else if (again != MAP_FAILED) {
		munmap(again, n * PAGE);
	}
}

static void map_again(uint64_t first, uint64_t n, int at_once)
{
	static int mappings;
	unsigned char *at = slots[first].at;
	int mapping = __sync_add_and_fetch(&mappings, 1);
	if (!at_once)
		must(!munmap(at, n * PAGE), 6);
	/* If another thread has mapped memory here meanwhile, the kernel chooses another address. */
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at_once ? MAP_FIXED : 0);
	at = mmap(at, n * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	must(at != MAP_FAILED, 7);
	for (uint64_t i = 0; i < n; i++)
		slots[first + i] = (struct slot){ at + i * PAGE, 0, mapping, 1 };
}

static void has_child(uint64_t state, const char *self, int depth)
{
	/* The child has only this thread, and inherits the write lock. It therefore never locks
	 * again, and no other thread changes the memory during the fork. */
	if (!depth)
		pthread_rwlock_wrlock(&forking);
	pid_t child = fork();
	must(child >= 0, 8);
	if (!child) {
		if (draw(&state, 4) == 0) {
			execl(self, self, (char *)0);
			_exit(9);
		}
		if (draw(&state, 2) == 0) {
			uint64_t first = draw(&state, count), n = neighbours(first, count, SPAN_MAX);
			if (n) {
				must(!madvise(slots[first].at, n * PAGE, MADV_DONTNEED), 9);
				for (uint64_t i = 0; i < n; i++)
					slots[first + i].value = 0;
			}
		}
		if (depth < 2)
			has_child(state, self, depth + 1);
		check_all(state);
		_exit(0);
	}
	if (!depth)
		pthread_rwlock_unlock(&forking);
	int status = 0;
	must(waitpid(child, &status, 0) == child, 10);
	must(status == 0, 100 + (uint64_t)status);
}

static void step(uint64_t *state, uint64_t start, uint64_t end, const char *self)
{
	uint64_t kind = draw(state, 100), first = start + draw(state, end - start);
	if (kind < 2) {
		has_child(*state, self, 0);
		return;
	}
	pthread_rwlock_rdlock(&forking);
	uint64_t n = neighbours(first, end, 1 + draw(state, SPAN_MAX));
	if (!n) {
		pthread_rwlock_unlock(&forking);
		return;
	}
	if (kind < 40) {
		for (uint64_t i = 0; i < n; i++)
			check(first + i);
	} else if (kind < 55) {
		must(!madvise(slots[first].at, n * PAGE, MADV_DONTNEED), 11);
		for (uint64_t i = 0; i < n; i++)
			slots[first + i].value = 0;
	} else if (kind < 65) {
		move(first, n);
	} else if (kind < 75) {
		map_again(first, n, kind & 1);
	} else if (kind < 80) {
		must(!mprotect(slots[first].at, n * PAGE, PROT_READ), 12);
		check(first);
		must(!mprotect(slots[first].at, n * PAGE, PROT_READ | PROT_WRITE), 13);
	} else if (kind < 90) {
		through_kernel(first, n, *state | 1);
	} else {
		for (uint64_t i = 0; i < n; i++)
			fill(&slots[first + i], (*state + i) | 1);
	}
	pthread_rwlock_unlock(&forking);
}

static uint64_t seed;
static const char *program;

static void *churn(void *argument)
{
	uint64_t number = (uintptr_t)argument, state = seed * THREADS + number;
	for (int i = 0; i < STEPS; i++)
		step(&state, number * own, (number + 1) * own, program);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 1)
		return 0;
	program = "/proc/self/exe";
	int file = open(argv[1], O_RDWR | O_CREAT, 0600);
	must(!ftruncate(file, PAGE), 20);
	report = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	count = strtoull(argv[3], 0, 10) << 20 >> 12;
	own = count / THREADS;
	unsigned char *all = mmap(0, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (uint64_t i = 0; i < count; i++) {
		slots[i] = (struct slot){ all + i * PAGE, 0, 0, 1 };
		fill(&slots[i], mix(i + 1) | 1);
	}
	char kind[16] = "";
	report[0] = 1;
	for (FILE *go; !(go = fopen(argv[2], "r")) || fscanf(go, "%15s %lu", kind, &seed) != 2; usleep(1000))
		if (go)
			fclose(go);
	if (!strcmp(kind, "watch"))
		for (uint64_t round = 2;; round++) {
			check_all(seed + round);
			report[0] = round;
		}
	pthread_t threads[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		must(!pthread_create(&threads[i], 0, churn, (void *)i), 21);
	for (uintptr_t i = 0; i < THREADS; i++)
		must(!pthread_join(threads[i], 0), 22);
	check_all(seed);
	report[0] = 2;
	return report[1] ? 3 : 0;
}
