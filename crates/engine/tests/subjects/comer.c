/* Makes a large mapping, writes to all its pages, and removes it, again and again, beside memory that it seldom changes.
 * Programs whose garbage collector gives its memory back do the same.
 *
 * Usage: comer FILE KEPT_MIB COMING_MIB. When the first mapping was removed, the program writes to FILE. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

static unsigned char *filled(uint64_t bytes, uint64_t serial)
{
	unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		_exit(1);
	for (uint64_t at = 0; at < bytes; at += PAGE)
		*(uint64_t *)(memory + at) = serial + at;
	return memory;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	uint64_t kept_bytes = strtoul(argv[2], NULL, 10) << 20, coming_bytes = strtoul(argv[3], NULL, 10) << 20;
	unsigned char *kept = filled(kept_bytes, 1);
	for (uint64_t serial = 2;; serial++) {
		unsigned char *coming = filled(coming_bytes, serial);
		for (int number = 0; number < 64; number++)
			kept[serial * 64 * PAGE % kept_bytes + number * PAGE % kept_bytes]++;
		munmap(coming, coming_bytes);
		if (serial == 2) {
			int said = open(argv[1], O_WRONLY | O_CREAT, 0600);
			if (write(said, "removed\n", 8) != 8)
				return 3;
			close(said);
		}
	}
}
