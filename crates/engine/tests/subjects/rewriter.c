/* Writes to all pages of a memory of huge pages again and again, in an order that jumps.
 *
 * Usage: rewriter FILE MIB. Each page contains the number of its last write at its begin and at its end. When all
 * pages are written, the program writes to FILE. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define BLOCK (2u << 20)
/* An odd number, so that every page is reached. */
#define STRIDE 2731
#define PAGES_PER_NAP 64

int main(int argc, char **argv)
{
	uint64_t bytes = strtoul(argv[argc - 1], NULL, 10) << 20, pages = bytes / PAGE;
	unsigned char *memory = mmap(NULL, bytes + BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	memory += BLOCK - (uintptr_t)memory % BLOCK;
	madvise(memory, bytes, MADV_HUGEPAGE);
	for (uint64_t serial = 1;; serial++) {
		uint64_t *words = (uint64_t *)(memory + serial * STRIDE % pages * PAGE);
		if (serial > pages && words[0] != words[PAGE / 8 - 1])
			return 2;
		words[0] = words[PAGE / 8 - 1] = serial;
		if (serial == pages) {
			int said = open(argv[1], O_WRONLY | O_CREAT, 0600);
			if (write(said, "written\n", 8) != 8)
				return 3;
			close(said);
		}
		if (serial % PAGES_PER_NAP == 0)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
}
