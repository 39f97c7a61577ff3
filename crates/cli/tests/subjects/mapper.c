/* Stores numbers to a mapped file of 32 MiB, and appends each number to a second file. Usage: mapper DIRECTORY.
 * Private memory has the expected content of each page. If memory and files disagree, writes the file `wrong` and ends. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 8192, STORES = 3 };

static uint32_t expected[PAGES];

static void wrong(const char *what, uint32_t number)
{
	int file = open("wrong", O_WRONLY | O_CREAT | O_APPEND, 0600);
	dprintf(file, "%s at number %u\n", what, number);
	_exit(3);
}

int main(int count, char **words)
{
	if (count < 2 || chdir(words[1]))
		return 2;
	int file = open("map", O_RDWR | O_CREAT, 0600), lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (file < 0 || lines < 0 || ftruncate(file, (off_t)PAGE * PAGES))
		return 2;
	char *map = mmap(0, (size_t)PAGE * PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (map == MAP_FAILED || madvise(map, (size_t)PAGE * PAGES, MADV_RANDOM))
		return 2;
	for (uint32_t page = 0; page < PAGES; page++)
		expected[page] = *(uint32_t *)(map + (size_t)page * PAGE);
	struct stat found;
	fstat(lines, &found);
	for (uint32_t number = found.st_size / 11 + 1;; number++) {
		for (uint32_t store = 0; store < STORES; store++) {
			uint32_t page = store ? (number * 2654435761u + store * 977) % PAGES : 0;
			volatile uint32_t *at = (volatile uint32_t *)(map + (size_t)page * PAGE);
			if (*at != expected[page])
				wrong("a page of the mapped file differs from memory", number);
			*at = expected[page] = number;
		}
		fstat(lines, &found);
		if (found.st_size != (off_t)(number - 1) * 11)
			wrong("the length of the second file differs from memory", number);
		dprintf(lines, "%10u\n", number);
		nanosleep(&(struct timespec){ 0, 4000000 }, 0);
	}
}
