/* Maps a file shared, first without the right to write, then with it, and writes. The first argument is the file, the second
   `mmap` or `mprotect`: the call that gives the right. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    int is_late = !strcmp(words[2], "mprotect"), file = open(words[1], O_RDWR);
    int rights = is_late ? PROT_READ : PROT_READ | PROT_WRITE;
    char *memory = mmap(NULL, 4096, rights, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED || (is_late && mprotect(memory, 4096, PROT_READ | PROT_WRITE)))
        return 1;
    memory[0] = 'X';
    return 0;
}
