/* Replaces each mapping of its own program file by an anonymous copy at the same address. */
#include "victim.h"

#include <sys/mman.h>

static char executable[PATH_MAX];

/* Counts the mappings of the program file. If `replaces` is true, also replaces each of them. */
static int areas_of_executable(bool replaces)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	check(maps != NULL, "maps: %m");
	static char *starts[64];
	static size_t lengths[64];
	static int protections[64];
	char line[PATH_MAX + 128];
	int count = 0;
	while (fgets(line, sizeof(line), maps) != NULL) {
		unsigned long start, end;
		char rights[5], path[PATH_MAX] = "";
		if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %s", &start, &end, rights, path) < 4)
			continue;
		if (strcmp(path, executable) != 0)
			continue;
		check(count < 64, "too many areas");
		starts[count] = (char *)start;
		lengths[count] = end - start;
		protections[count] = (rights[0] == 'r' ? PROT_READ : 0) | (rights[1] == 'w' ? PROT_WRITE : 0) |
				     (rights[2] == 'x' ? PROT_EXEC : 0);
		count++;
	}
	fclose(maps);
	for (int index = 0; replaces && index < count; index++) {
		size_t length = lengths[index];
		char *copy = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		check(copy != MAP_FAILED, "mmap: %m");
		memcpy(copy, starts[index], length);
		must(mprotect(copy, length, protections[index]));
		/* A single system call exchanges the pages, because these pages contain the code of
		 * this function. */
		check(mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, starts[index]) == starts[index],
		      "mremap: %m");
	}
	return count;
}

static void setup(void)
{
	must(readlink("/proc/self/exe", executable, sizeof(executable) - 1));
	check(areas_of_executable(true) > 0, "no area of %s", executable);
}

static void verify(void)
{
	check(areas_of_executable(false) == 0, "an area of %s is mapped", executable);
}

static void sabotage(void)
{
	int file = open(executable, O_RDONLY | O_CLOEXEC);
	check(file >= 0, "%s: %m", executable);
	check(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0) != MAP_FAILED, "mmap: %m");
	must(close(file));
}

static const struct victim victim = { setup, NULL, verify, sabotage, NULL, false };
VICTIM_MAIN(victim)
