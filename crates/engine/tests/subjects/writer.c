/* Repeatedly writes to each of its pages, and writes the number of completed rounds to FILE.
 *
 * Usage: writer FILE PAGES [REST]. REST is the pause between two rounds in microseconds. The
 * default is 1000. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    unsigned rest = argc > 3 ? atoi(argv[3]) : 1000;
    size_t pages = strtoul(argv[2], NULL, 10);
    volatile unsigned long *memory =
        mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int said = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (memory == MAP_FAILED || said < 0)
        return 1;
    for (unsigned long round = 1;; round++) {
        for (size_t page = 0; page < pages; page++)
            memory[page * 512] = round;
        char line[32];
        int length = snprintf(line, sizeof line, "%20lu\n", round);
        if (pwrite(said, line, length, 0) != length)
            return 1;
        if (rest)
            usleep(rest);
    }
}
