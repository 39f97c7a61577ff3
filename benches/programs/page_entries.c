/* Measures two ways to find the resident pages of a process without PAGEMAP_SCAN, in three rounds.
 *
 * The first way reads /proc/self/pagemap for a mapping of 64 GiB without a resident page. Each read has the size that
 * undying uses. The second way reads /proc/self/smaps of a process with 512 MiB in memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ull
#define SPARSE_BYTES (64ull << 30)
#define RESIDENT_BYTES (512ull << 20)
#define ENTRIES 65536u
#define ROUNDS 3

static uint64_t entries[ENTRIES];

static double now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void *map(uint64_t bytes, int protection)
{
	return mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

int main(void)
{
	char *sparse = map(SPARSE_BYTES, PROT_NONE), *resident = map(RESIDENT_BYTES, PROT_READ | PROT_WRITE);
	int page_map = open("/proc/self/pagemap", O_RDONLY);
	if (sparse == MAP_FAILED || resident == MAP_FAILED || page_map < 0)
		return perror("set up"), 1;
	madvise(resident, RESIDENT_BYTES, MADV_NOHUGEPAGE);
	memset(resident, 1, RESIDENT_BYTES);
	for (int round = 0; round < ROUNDS; round++) {
		double begun = now_ms();
		for (uint64_t page = 0; page < SPARSE_BYTES / PAGE; page += ENTRIES)
			if (pread(page_map, entries, sizeof(entries), ((off_t)(uintptr_t)sparse / PAGE + page) * 8) < 0)
				return perror("read the page map"), 1;
		double took = now_ms() - begun;
		printf("entries of 64 GiB: %.1f ms, %.2f ns a page\n", took, took * 1e6 / (SPARSE_BYTES / PAGE));
		begun = now_ms();
		int smaps = open("/proc/self/smaps", O_RDONLY);
		while (read(smaps, entries, sizeof(entries)) > 0)
			continue;
		close(smaps);
		took = now_ms() - begun;
		printf("smaps with 512 MiB: %.1f ms, %.1f ns a page\n", took, took * 1e6 / (RESIDENT_BYTES / PAGE));
	}
	return 0;
}
