/* Fills its memory as fast as possible in repeated passes, and checks each page before it writes
 * the page.
 *
 * Usage: filler FILE MIB PASSES. FILE contains `pass N` after pass N, and `broken` and an index if
 * a page does not have the values of the previous pass. With PASSES 0, the program runs until it is
 * killed. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void say(int file, const char *what, unsigned long number)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%s %20lu\n", what, number);
    if (pwrite(file, line, length, 0) != length)
        _exit(1);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    size_t words = strtoul(argv[2], NULL, 10) << 17;
    unsigned long passes = strtoul(argv[3], NULL, 10);
    unsigned long *memory =
        mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int said = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (memory == MAP_FAILED || said < 0)
        return 1;
    for (unsigned long pass = 1; passes == 0 || pass <= passes; pass++) {
        for (size_t at = 0; at < words; at += 512) {
            unsigned long was = pass == 1 ? 0 : at + pass - 1;
            if (memory[at] != was || memory[at + 511] != was) {
                say(said, "broken", at);
                return 3;
            }
            for (size_t word = 0; word < 512; word++)
                memory[at + word] = at + pass;
        }
        say(said, "pass", pass);
    }
    return 0;
}
