/* A process that changes its memory in many ways at full speed, until it is killed. A seed
 * determines the changes.
 *
 * Two threads write to mappings that stay. A third thread discards, protects, moves, unmaps and
 * grows memory, forks, and uses its stack and its heap. The process does not check its memory: the
 * test compares it with a copy. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE = 2 << 20 };

/* Constants of linux/mman.h that some C libraries do not have. */
enum { COLLAPSE = 25, GUARD_INSTALL = 102, GUARD_REMOVE = 103 };

static const size_t RESERVED_BYTES = 4ul << 30;

struct area {
    char *start;
    size_t pages;
};

enum { PLAIN, LARGE, SHARED, MEMORY_FILE, PRIVATE_FILE, RESERVED, FIXED_AREAS };

static struct area areas[FIXED_AREAS];
static uint64_t seed;

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static char *map(size_t bytes, int flags, int fd)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

static void set_up(const char *directory)
{
    char name[256], page[PAGE];
    snprintf(name, sizeof name, "%s/restless-XXXXXX", directory);
    int file = mkstemp(name), memory = memfd_create("restless", MFD_CLOEXEC);
    unlink(name);
    memset(page, 0x55, sizeof page);
    for (int index = 0; index < 512; index++)
        if (write(file, page, PAGE) != PAGE)
            exit(1);
    if (ftruncate(memory, 256 * PAGE))
        exit(1);
    const int private = MAP_PRIVATE | MAP_ANONYMOUS;
    areas[PLAIN] = (struct area){map(2048 * PAGE, private, -1), 2048};
    madvise(areas[PLAIN].start, 2048 * PAGE, MADV_NOHUGEPAGE);
    char *large = map(5 * HUGE, private, -1);
    large = (char *)(((uintptr_t)large + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    madvise(large, 4 * HUGE, MADV_HUGEPAGE);
    areas[LARGE] = (struct area){large, 2048};
    areas[SHARED] = (struct area){map(512 * PAGE, MAP_SHARED | MAP_ANONYMOUS, -1), 512};
    areas[MEMORY_FILE] = (struct area){map(256 * PAGE, MAP_SHARED, memory), 256};
    areas[PRIVATE_FILE] = (struct area){map(512 * PAGE, MAP_PRIVATE, file), 512};
    char *reserved = map(RESERVED_BYTES, private | MAP_NORESERVE, -1);
    areas[RESERVED] = (struct area){reserved, RESERVED_BYTES / PAGE};
    close(memory);
}

/* Returns a random page. In the reserved mapping, it is in one of a few small ranges, so that the
 * machine has enough memory. */
static size_t some_page(const struct area *area, uint64_t *state)
{
    if (area != &areas[RESERVED])
        return next(state) % area->pages;
    return next(state) % 24 * 40000 + next(state) % 64;
}

static void write_some(const struct area *area, uint64_t *state)
{
    size_t page = some_page(area, state), run = next(state) % 16 ? 1 : next(state) % 40;
    if (page + run > area->pages)
        run = area->pages - page;
    for (size_t index = 0; index < run; index++)
        *(uint64_t *)(area->start + (page + index) * PAGE + next(state) % 512 * 8) = next(state);
}

static void *writer(void *argument)
{
    uint64_t state = seed * 7919 + (uintptr_t)argument + 1;
    for (;;) {
        write_some(&areas[next(&state) % FIXED_AREAS], &state);
        /* Sleeps sometimes, for a random time, so that other threads can run. */
        if (next(&state) % 8 == 0)
            usleep(next(&state) % 100);
    }
    return NULL;
}

static void discard(uint64_t *state)
{
    static const int advices[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_FREE,       MADV_COLD,     MADV_PAGEOUT,
                                  COLLAPSE,      MADV_REMOVE,   MADV_NOHUGEPAGE, MADV_HUGEPAGE, MADV_MERGEABLE,
                                  MADV_WILLNEED, MADV_REMOVE};
    const struct area *area = &areas[next(state) % FIXED_AREAS];
    size_t page = some_page(area, state), run = next(state) % 8 ? next(state) % 6 + 1 : next(state) % 1200;
    if (page + run > area->pages)
        run = area->pages - page;
    int advice = advices[next(state) % (sizeof advices / sizeof *advices)];
    if (advice == MADV_NOHUGEPAGE || advice == MADV_HUGEPAGE)
        madvise(areas[LARGE].start, areas[LARGE].pages * PAGE, advice);
    else
        madvise(area->start + page * PAGE, run * PAGE, advice);
    if (next(state) % 4 == 0)
        (void)*(volatile char *)(area->start + page * PAGE);
}

/* Installs and removes guards in pages that no other function uses. */
static void guard(uint64_t *state)
{
    static char *pages;
    if (!pages)
        pages = map(8 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    size_t page = next(state) % 8;
    if (next(state) % 2)
        madvise(pages + page * PAGE, PAGE, GUARD_INSTALL);
    else if (!madvise(pages, 8 * PAGE, GUARD_REMOVE))
        pages[page * PAGE] = (char)next(state);
}

/* Moves memory. If the memory is in several mappings, it cannot be moved, and is unmapped. */
static char *moved(char *from, size_t pages, size_t wanted, int elsewhere)
{
    char *to = elsewhere ? map(wanted * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1) : NULL;
    int flags = elsewhere ? MREMAP_MAYMOVE | MREMAP_FIXED : MREMAP_MAYMOVE;
    char *at = mremap(from, pages * PAGE, wanted * PAGE, flags, to);
    if (at != MAP_FAILED)
        return at;
    munmap(from, pages * PAGE);
    if (elsewhere)
        munmap(to, wanted * PAGE);
    return NULL;
}

static void remap(uint64_t *state)
{
    const int both = PROT_READ | PROT_WRITE, private = MAP_PRIVATE | MAP_ANONYMOUS;
    static char *own;
    static size_t pages;
    if (!own) {
        pages = next(state) % 60 + 4;
        own = map(pages * PAGE, private, -1);
    }
    memset(own + next(state) % pages * PAGE, (int)next(state), PAGE);
    size_t wanted = next(state) % 100 + 2;
    char *before = own;
    switch (next(state) % 7) {
    case 0:
        munmap(own, pages * PAGE);
        own = NULL;
        return;
    case 1: /* another mapping at the same address */
        mmap(own, pages / 2 * PAGE, both, private | MAP_FIXED, -1, 0);
        return;
    case 2:
        own = moved(own, pages, wanted, 0);
        pages = wanted;
        return;
    case 3:
        own = moved(own, pages, pages, 1);
        return;
    case 4: /* read-only, and writable again */
        mprotect(own, pages / 2 * PAGE, PROT_READ);
        mprotect(own, pages / 2 * PAGE, both);
        return;
    case 5:
        mprotect(own, pages * PAGE, PROT_NONE);
        mprotect(own, pages * PAGE, both);
        return;
    default: /* moved, and other memory at the old address */
        own = moved(own, pages, pages, 1);
        if (own && mmap(before, PAGE, both, private | MAP_FIXED_NOREPLACE, -1, 0) == before) {
            before[1] = 1;
            munmap(before, PAGE);
        }
    }
}

static void fork_one(uint64_t *state)
{
    pid_t child = fork();
    if (child == 0) {
        for (int index = 0; index < 50; index++)
            write_some(&areas[next(state) % 2 ? PLAIN : LARGE], state);
        _exit(0);
    }
    for (int index = 0; index < 20; index++)
        write_some(&areas[PLAIN], state);
    waitpid(child, NULL, 0);
}

static uint64_t __attribute__((noinline)) use_stack(uint64_t *state, int depth)
{
    volatile uint64_t frame[200];
    for (int index = 0; index < 200; index++)
        frame[index] = next(state);
    return depth > 0 ? use_stack(state, depth - 1) + frame[7] : frame[3];
}

static void use_heap(uint64_t *state)
{
    enum { BLOCKS = 64 };
    static char *blocks[BLOCKS];
    static size_t sizes[BLOCKS];
    size_t index = next(state) % BLOCKS;
    free(blocks[index]);
    sizes[index] = next(state) % 20 ? next(state) % 5000 : next(state) % 300000;
    blocks[index] = malloc(sizes[index] + 1);
    memset(blocks[index], (int)next(state), sizes[index] / 2 + 1);
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    seed = strtoull(arguments[1], NULL, 10) | 1;
    set_up(arguments[2]);
    pthread_t threads[2];
    for (uintptr_t index = 0; index < 2; index++)
        pthread_create(&threads[index], NULL, writer, (void *)index);
    puts("ready");
    fflush(stdout);
    uint64_t state = seed;
    for (unsigned round = 0;; round++) {
        switch (next(&state) % 8) {
        case 0:
        case 1:
            discard(&state);
            break;
        case 2:
            guard(&state);
            break;
        case 3:
            remap(&state);
            break;
        case 4:
            use_stack(&state, (int)(next(&state) % 100));
            break;
        case 5:
        case 6:
            use_heap(&state);
            break;
        default:
            if (round % 512 == 7)
                fork_one(&state);
            usleep(50);
        }
    }
}
