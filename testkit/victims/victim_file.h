/* Files with known content, for the victims that map files. */
#ifndef UNDYING_VICTIM_FILE_H
#define UNDYING_VICTIM_FILE_H

#include "victim.h"
#include "victim_memory.h"

/* Creates a file in the directory of the verdict, filled with the byte pattern of `seed`. Returns
 * its descriptor. */
static inline int victim_make_file(const char *name, size_t length, uint64_t seed)
{
	unsigned char *content = malloc(length);
	char path[PATH_MAX];
	int fd = must(open(victim_path(path, name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
	check(content != NULL, "malloc: %m");
	victim_fill(content, length, seed);
	check(write(fd, content, length) == (ssize_t)length, "%s: write: %m", name);
	free(content);
	return fd;
}

/* Compares `length` bytes at `at` with the file content that has pattern `seed`, starting at file
 * offset `offset`. */
static inline void victim_check_file_bytes(const char *name, const unsigned char *at, size_t offset, size_t length,
					   uint64_t seed)
{
	for (size_t i = 0; i < length; i++)
		check(at[i] == victim_byte(seed, offset + i), "%s: byte %zu of the file is wrong in memory", name, offset + i);
}

#endif
