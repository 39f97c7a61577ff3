/* A subject with much memory. `large MIB` fills this amount of memory, and then changes one word of
 * one page after the other, about every millisecond. It checks each word before the change, and
 * ends with SIGILL if the word is wrong. */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PAGE_WORDS 512

int main(int argc, char **argv)
{
	const struct timespec nap = { 0, 1000000 };
	size_t pages = (size_t)atoi(argc > 1 ? argv[1] : "1") * 256;
	uint64_t *words = malloc(pages * PAGE_WORDS * sizeof(*words));
	if (words == NULL)
		return 1;
	for (size_t i = 0; i < pages * PAGE_WORDS; i++)
		words[i] = i * 0x9e3779b97f4a7c15u;
	for (uint64_t round = 0;; round++) {
		size_t page = round % pages;
		uint64_t wanted = page * PAGE_WORDS * 0x9e3779b97f4a7c15u + round / pages;
		if (words[page * PAGE_WORDS] != wanted)
			raise(SIGILL);
		words[page * PAGE_WORDS]++;
		nanosleep(&nap, NULL);
	}
}
