/* Proves that memory which a parent and its children share copy-on-write stays shared. A parent, six
 * children and a grandchild share one mapping. Each of them has changed, cleared and discarded pages
 * of its own since the fork, and some have unmapped, protected or moved parts. After a restore, each
 * process has its own content, and all together use about as much memory as before. Memory with
 * MADV_DONTFORK and MADV_WIPEONFORK, and changed pages of a private file mapping, belong to each
 * process alone. */
#include "victim.h"
#include "victim_memory.h"

#define CHILDREN 6
/* Numbers of the processes: 0 is the parent, 1 to 6 are its children, 7 is a child of child 1. */
#define GRANDCHILD 7
#define PROCESSES 8
#define PAGES 6144u
#define SMALL_PAGES 64u
#define WORDS (VICTIM_PAGE / sizeof(uint64_t))

/* The content of a page: 0 for zeros, otherwise a seed. */
#define UNMAPPED UINT64_MAX

/* The middle of the mapping, which some children unmap, protect or move. */
#define MIDDLE_FIRST 3000u
#define MIDDLE_PAGES 100u

static int number;
static pid_t pids[PROCESSES];
static unsigned char *common, *only_parent, *wiped, *file, *moved;
static unsigned long shared_kib;

static uint64_t seed_of(int process, unsigned page)
{
	return ((uint64_t)process + 1) << 32 | page;
}

static void fill_page(unsigned char *at, uint64_t seed)
{
	for (size_t i = 0; i < WORDS; i++)
		((volatile uint64_t *)at)[i] = seed == 0 ? 0 : seed * 0x9e3779b97f4a7c15u + i;
}

static void check_page(const char *what, const unsigned char *at, unsigned page, uint64_t seed)
{
	for (size_t i = 0; i < WORDS; i++)
		check(((const volatile uint64_t *)at)[i] == (seed == 0 ? 0 : seed * 0x9e3779b97f4a7c15u + i),
		      "process %d: page %u of %s is wrong", number, page, what);
}

static bool is_middle(unsigned page)
{
	return page >= MIDDLE_FIRST && page < MIDDLE_FIRST + MIDDLE_PAGES;
}

/* Reports whether a process has written to a page since it was forked. */
static bool has_changed(int process, unsigned page)
{
	return page % 97 == (unsigned)process || (page / 64) % 48 == (unsigned)process;
}

static bool has_cleared(int process, unsigned page)
{
	return page % 331 == 100 + (unsigned)process;
}

/* Pages that were discarded one by one, and one run of pages. */
static bool has_discarded(int process, unsigned page)
{
	return page % 211 == 50 + (unsigned)process || page / 32 == 20 + (unsigned)process;
}

/* The content of a page at the fork of the children of `process`, or now. */
static uint64_t content(int process, unsigned page)
{
	if (has_discarded(process, page) || has_cleared(process, page))
		return 0;
	if (has_changed(process, page))
		return seed_of(process, page);
	return process == GRANDCHILD ? content(1, page) : seed_of(PROCESSES, page);
}

static uint64_t now(unsigned page)
{
	if (is_middle(page) && (number == 3 || number == 6))
		return UNMAPPED;
	return content(number, page);
}

/* Makes the changes of a process after its fork. */
static void change(void)
{
	for (unsigned page = 0; page < PAGES; page++) {
		unsigned char *at = common + page * VICTIM_PAGE;
		if (has_discarded(number, page))
			must(madvise(at, VICTIM_PAGE, MADV_DONTNEED));
		else if (has_cleared(number, page))
			fill_page(at, 0);
		else if (has_changed(number, page))
			fill_page(at, seed_of(number, page));
	}
}

static void change_mappings(void)
{
	unsigned char *middle = common + MIDDLE_FIRST * VICTIM_PAGE;
	size_t length = MIDDLE_PAGES * VICTIM_PAGE;
	if (number == 3)
		must(munmap(middle, length));
	if (number == 4)
		must(mprotect(middle, length, PROT_READ));
	if (number == 5)
		must(mprotect(middle, length, PROT_NONE));
	if (number == 6) {
		moved = victim_place(length);
		check(mremap(middle, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == moved, "mremap: %m");
	}
	if (number == 2) {
		unsigned char *at = mmap(only_parent, SMALL_PAGES * VICTIM_PAGE, PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		check(at == only_parent, "mmap at the address of the parent's memory: %m");
	}
	for (unsigned page = 0; page < SMALL_PAGES; page++) {
		if (number == 2)
			fill_page(only_parent + page * VICTIM_PAGE, seed_of(2, page));
		if (number == 1 && page % 2 == 1)
			fill_page(wiped + page * VICTIM_PAGE, seed_of(1, page));
		if (number > 0 && page % 7 == 0)
			must(madvise(file + page * VICTIM_PAGE, VICTIM_PAGE, MADV_DONTNEED));
	}
}

static void check_common(void)
{
	for (unsigned page = 0; page < PAGES; page++) {
		const unsigned char *at = common + page * VICTIM_PAGE;
		if (now(page) == UNMAPPED && number == 6)
			at = moved + (page - MIDDLE_FIRST) * VICTIM_PAGE;
		else if (now(page) == UNMAPPED)
			continue;
		check_page("the common mapping", at, page, content(number, page));
	}
}

static bool is_mapped(const unsigned char *at)
{
	return msync((void *)at, VICTIM_PAGE, MS_ASYNC) == 0;
}

static void check_small(void)
{
	for (unsigned page = 0; page < SMALL_PAGES; page++) {
		size_t offset = page * VICTIM_PAGE;
		check(is_mapped(only_parent + offset) == (number == 0 || number == 2), "process %d: page %u of DONTFORK",
		      number, page);
		if (number == 0 || number == 2)
			check_page("DONTFORK memory", only_parent + offset, page, seed_of(number, page));
		bool has_content = number == 0 || (number == 1 && page % 2 == 1);
		check_page("WIPEONFORK memory", wiped + offset, page, has_content ? seed_of(number, page) : 0);
		bool is_of_file = page % 7 == 0 && number > 0;
		check_page("the file mapping", file + offset, page, seed_of(is_of_file ? 100 : 101, page));
	}
}

static void check_mappings(void)
{
	const unsigned char *middle = common + MIDDLE_FIRST * VICTIM_PAGE;
	char text[VICTIM_DESCRIPTION_MAX];
	check(is_mapped(middle) == (number != 3 && number != 6), "process %d: the middle is %s", number,
	      is_mapped(middle) ? "mapped" : "unmapped");
	if (number != 4 && number != 5)
		return;
	victim_describe(middle, text);
	check(strstr(text, number == 4 ? " r--p " : " ---p ") != NULL, "process %d: the middle is %s", number, text);
}

/* Reads the middle through another access right, and takes the right back. */
static void open_middle(int protection)
{
	if (number == 5)
		must(mprotect(common + MIDDLE_FIRST * VICTIM_PAGE, MIDDLE_PAGES * VICTIM_PAGE, protection));
}

static void check_memory(void)
{
	check_mappings();
	open_middle(PROT_READ);
	check_common();
	open_middle(PROT_NONE);
	check_small();
}

/* Writes its own content to one of its own pages again. */
static void work(void)
{
	unsigned page = (unsigned)(victim_ticks * 97 % PAGES) / 97 * 97 + (unsigned)number;
	if (page < PAGES && now(page) == seed_of(number, page) && !is_middle(page))
		fill_page(common + page * VICTIM_PAGE, seed_of(number, page));
}

/* Returns the memory of a process in KiB. A page that n processes map counts as 1/n page. */
static unsigned long proportional_kib(pid_t pid)
{
	char path[64], line[256];
	unsigned long kib = 0;
	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
	FILE *rollup = fopen(path, "re");
	check(rollup != NULL, "cannot open %s: %m", path);
	while (fgets(line, sizeof(line), rollup) != NULL)
		sscanf(line, "Pss: %lu kB", &kib);
	fclose(rollup);
	check(kib > 0, "no Pss in %s", path);
	return kib;
}

static unsigned long all_kib(void)
{
	unsigned long kib = 0;
	for (int i = 0; i < PROCESSES; i++)
		kib += proportional_kib(pids[i]);
	return kib;
}

static void end_child(void)
{
	check_memory();
	if (number == 1)
		victim_end_child(pids[GRANDCHILD]);
}

static void start(int child)
{
	struct victim_gate gate = victim_gate_make();
	pid_t pid = victim_fork();
	if (pid == 0) {
		number = child;
		change();
		if (child == 1)
			start(GRANDCHILD);
		change_mappings();
		check_memory();
		check(write(gate.ends[1], &pids[GRANDCHILD], sizeof(pid_t)) == sizeof(pid_t), "cannot report: %m");
		close(gate.ends[0]);
		close(gate.ends[1]);
		victim_child(work, end_child);
	}
	pid_t grandchild = 0;
	close(gate.ends[1]);
	check(read(gate.ends[0], &grandchild, sizeof(pid_t)) == sizeof(pid_t), "a child ended before it was ready");
	close(gate.ends[0]);
	pids[child] = pid;
	if (grandchild != 0)
		pids[GRANDCHILD] = grandchild;
}

static void map_file(void)
{
	char path[PATH_MAX];
	unsigned char page_bytes[VICTIM_PAGE];
	int fd = must(open(victim_path(path, "mapped"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	for (unsigned page = 0; page < SMALL_PAGES; page++) {
		fill_page(page_bytes, seed_of(100, page));
		check(write(fd, page_bytes, VICTIM_PAGE) == VICTIM_PAGE, "cannot write %s: %m", path);
	}
	file = victim_map(SMALL_PAGES * VICTIM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	close(fd);
}

static void setup(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	common = victim_map(PAGES * VICTIM_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	/* A huge page would be split, and its parts would count as shared only later. */
	must(madvise(common, PAGES * VICTIM_PAGE, MADV_NOHUGEPAGE));
	only_parent = victim_map(SMALL_PAGES * VICTIM_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	wiped = victim_map(SMALL_PAGES * VICTIM_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	map_file();
	must(madvise(only_parent, SMALL_PAGES * VICTIM_PAGE, MADV_DONTFORK));
	must(madvise(wiped, SMALL_PAGES * VICTIM_PAGE, MADV_WIPEONFORK));
	for (unsigned page = 0; page < PAGES; page++)
		fill_page(common + page * VICTIM_PAGE, seed_of(PROCESSES, page));
	for (unsigned page = 0; page < SMALL_PAGES; page++) {
		fill_page(only_parent + page * VICTIM_PAGE, seed_of(0, page));
		fill_page(wiped + page * VICTIM_PAGE, seed_of(0, page));
		fill_page(file + page * VICTIM_PAGE, seed_of(101, page));
	}
	pids[0] = getpid();
	for (int child = 1; child <= CHILDREN; child++)
		start(child);
	change();
	shared_kib = all_kib();
}

static void verify(void)
{
	check_memory();
	unsigned long kib = all_kib();
	check(kib < shared_kib + shared_kib / 2, "the processes use %lu KiB, and used %lu KiB at the start", kib,
	      shared_kib);
}

static void sabotage(void)
{
	common[1234 * VICTIM_PAGE + 7] ^= 1;
}

static void finish(void)
{
	for (int child = 1; child <= CHILDREN; child++)
		victim_end_child(pids[child]);
	must_fail_with(waitpid(-1, NULL, WNOHANG), ECHILD);
}

static const struct victim victim = { setup, work, verify, sabotage, finish, false };
VICTIM_MAIN(victim)
