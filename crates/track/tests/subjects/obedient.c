/* A process that reads commands from standard input, executes one memory operation for each line,
 * and answers with a hexadecimal number or address. In a command, ADDR and OFFSET are hexadecimal.
 * Other numbers are decimal.
 *
 *   map KIND PAGES          maps memory, and answers with its address. KIND is anon, huge, hugetlb, shared,
 *                           memfd, file, privmem or reserve.
 *   write ADDR PAGES BYTE   writes a byte to all places of the pages
 *   read ADDR               answers with one byte
 *   advise ADDR PAGES ADVICE, protect ADDR PAGES PROT, unmap ADDR PAGES
 *   again ADDR PAGES        unmaps the pages, and maps anonymous memory at the same address
 *   move ADDR PAGES         moves the pages to a new address
 *   moveto ADDR PAGES TO    moves the pages to the address TO
 *   resize ADDR PAGES NEW   changes the size to NEW pages
 *   second ADDR PAGES BYTE  writes through another mapping of the memfd
 *   store OFFSET BYTE       writes one byte to the memfd with pwrite(2)
 *   drop                    drops all privileges
 *   fill ADDR PAGES BYTE    lets the kernel write to the pages, with read(2)
 *   fork                    answers with the pid of the child. The child executes the next commands, and the
 *                           parent waits.
 *   exec                    executes this program again
 *   watch ADDR PAGES        registers the pages with a userfaultfd of this process */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE = 2 << 20 };

static int memfd = -1;

static void *mapped(size_t bytes, int protection, int flags, int fd)
{
    void *at = mmap(NULL, bytes, protection, flags, fd, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

static int file_of(size_t bytes, int fd)
{
    char page[PAGE];
    memset(page, 0x55, sizeof page);
    for (size_t done = 0; done < bytes; done += PAGE)
        if (write(fd, page, PAGE) != PAGE)
            exit(1);
    return fd;
}

static void *map(const char *kind, size_t pages)
{
    const int both = PROT_READ | PROT_WRITE, private = MAP_PRIVATE | MAP_ANONYMOUS;
    size_t bytes = pages * PAGE;
    if (!strcmp(kind, "huge")) {
        char *at = mapped(bytes + HUGE, both, private, -1);
        at = (char *)(((uintptr_t)at + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
        madvise(at, bytes, MADV_HUGEPAGE);
        return at;
    }
    if (!strcmp(kind, "hugetlb"))
        return mapped(bytes, both, private | MAP_HUGETLB, -1);
    if (!strcmp(kind, "shared"))
        return mapped(bytes, both, MAP_SHARED | MAP_ANONYMOUS, -1);
    if (!strcmp(kind, "memfd")) {
        memfd = memfd_create("obedient", MFD_CLOEXEC);
        if (ftruncate(memfd, bytes))
            exit(1);
        return mapped(bytes, both, MAP_SHARED, memfd);
    }
    if (!strcmp(kind, "privmem"))
        return mapped(bytes, both, MAP_PRIVATE, file_of(bytes, memfd_create("private", MFD_CLOEXEC)));
    if (!strcmp(kind, "file")) {
        char name[] = "/tmp/undying-track-XXXXXX";
        int fd = file_of(bytes, mkstemp(name));
        unlink(name);
        return mapped(bytes, both, MAP_PRIVATE, fd);
    }
    if (!strcmp(kind, "reserve"))
        return mapped(bytes, both, private | MAP_NORESERVE, -1);
    char *at = mapped(bytes, both, private, -1);
    madvise(at, bytes, MADV_NOHUGEPAGE);
    return at;
}

static long watch(void *at, size_t bytes)
{
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register wanted = {.range = {(uintptr_t)at, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &wanted) ? -errno : 0;
}

static long fill(char *at, size_t bytes, int byte)
{
    int ends[2];
    char page[PAGE];
    memset(page, byte, sizeof page);
    if (pipe(ends))
        return -errno;
    for (size_t done = 0; done < bytes; done += PAGE)
        if (write(ends[1], page, PAGE) != PAGE || read(ends[0], at + done, PAGE) != PAGE)
            return -errno;
    close(ends[0]);
    close(ends[1]);
    return 0;
}

static long fork_on(void)
{
    pid_t child = fork();
    if (child == 0)
        return getpid();
    int status;
    waitpid(child, &status, 0);
    exit(0);
}

int main(int count, char **arguments)
{
    char line[256], word[32], kind[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        unsigned long a = 0, b = 0, c = 0;
        char *at;
        sscanf(line, "%31s", word);
        if (!strcmp(word, "map") && sscanf(line, "%*s %31s %lu", kind, &b) == 2) {
            printf("%lx\n", (unsigned long)map(kind, b));
            continue;
        }
        sscanf(line, "%*s %lx %lu %lu", &a, &b, &c);
        at = (char *)a;
        long answer = 0;
        if (!strcmp(word, "write"))
            for (size_t page = 0; page < b; page++)
                memset(at + page * PAGE, (int)c, PAGE);
        else if (!strcmp(word, "read"))
            answer = *(volatile unsigned char *)at;
        else if (!strcmp(word, "advise"))
            answer = madvise(at, b * PAGE, (int)c) ? -errno : 0;
        else if (!strcmp(word, "protect"))
            answer = mprotect(at, b * PAGE, (int)c);
        else if (!strcmp(word, "unmap"))
            answer = munmap(at, b * PAGE);
        else if (!strcmp(word, "again")) {
            munmap(at, b * PAGE);
            mmap(at, b * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            madvise(at, b * PAGE, MADV_NOHUGEPAGE);
        } else if (!strcmp(word, "move")) {
            void *to = mapped(b * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
            answer = (long)mremap(at, b * PAGE, b * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        } else if (!strcmp(word, "moveto")) {
            answer = (long)mremap(at, b * PAGE, b * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)c);
        } else if (!strcmp(word, "resize"))
            answer = (long)mremap(at, b * PAGE, c * PAGE, 0);
        else if (!strcmp(word, "second")) {
            char *other = mapped(b * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd);
            memset(other, (int)c, b * PAGE);
            munmap(other, b * PAGE);
        } else if (!strcmp(word, "store"))
            answer = pwrite(memfd, &(char){(char)b}, 1, (off_t)a);
        else if (!strcmp(word, "fill"))
            answer = fill(at, b * PAGE, (int)c);
        else if (!strcmp(word, "drop"))
            answer = setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534) ? -errno : 0;
        else if (!strcmp(word, "fork"))
            answer = fork_on();
        else if (!strcmp(word, "watch"))
            answer = watch(at, b * PAGE);
        else if (!strcmp(word, "exec"))
            execv("/proc/self/exe", arguments);
        else
            answer = -ENOSYS;
        printf("%lx\n", (unsigned long)answer);
    }
    (void)count;
    return 0;
}
