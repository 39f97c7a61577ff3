// The program of the fixtures. It checks itself, uses no library, and is linked to fixed addresses.
//
// usage: program DIR THREADS
//
// Each thread writes the number of its step to one of its pages. The first thread also overwrites a block of the file
// DIR/data, and holds bytes in a pipe. While DIR/hold exists, the first thread changes nothing. When DIR/go exists, all
// threads end, and the first thread compares pages, file and pipe with the steps. It exits with 42 if all are right,
// with 13 if only the file is of another step, and otherwise with the number of another check.
#define PAGES 6
#define BLOCKS 8
#define BLOCK 512
#define THREADS_MAX 4

typedef unsigned long word;

static long call(long nr, word a, word b, word c, word d) {
    long result;
    register word r10 __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

enum { READ = 0, WRITE = 1, OPEN = 2, PREAD = 17, PWRITE = 18, ACCESS = 21, PIPE = 22, NANOSLEEP = 35, EXIT = 60,
       FTRUNCATE = 77, EXIT_GROUP = 231 };

static struct {
    word step[512];
    word page[PAGES][512];
} __attribute__((aligned(4096))) own[THREADS_MAX];
static unsigned char stacks[THREADS_MAX][4096] __attribute__((aligned(4096)));
static volatile int ended[THREADS_MAX];
static char go[256], hold[256], data[256];

static void join(char *out, const char *folder, const char *name) {
    while (*folder) *out++ = *folder++;
    *out++ = '/';
    while ((*out++ = *name++)) {}
}

static void pause_ms(long ms) {
    long time[2] = {0, ms * 1000000};
    call(NANOSLEEP, (word)time, 0, 0, 0);
}

static int exists(const char *path) { return call(ACCESS, (word)path, 0, 0, 0) == 0; }

static int has_ended(void) { return exists(go); }

// The number of the last step of those that wrote to slot `at` of `count`; 0 if there was none.
static word last_of(word steps, word at, word count) {
    word back = (steps + count - at) % count;
    return steps > back ? steps - back : 0;
}

static void advance(int index) {
    word step = own[index].step[0] + 1;
    word *page = own[index].page[step % PAGES];
    for (int at = 0; at < 512; at++) page[at] = step;
    own[index].step[0] = step;
}

static int pages_are_right(int index) {
    for (word slot = 0; slot < PAGES; slot++) {
        word step = last_of(own[index].step[0], slot, PAGES);
        for (int at = 0; step && at < 512; at++)
            if (own[index].page[slot][at] != step) return 0;
    }
    return 1;
}

__attribute__((used)) static void other(long index) {
    while (!has_ended()) {
        advance(index);
        pause_ms(2);
    }
    ended[index] = pages_are_right(index) ? 1 : 2;
    call(EXIT, 0, 0, 0, 0);
}

// clone(2) with a new stack: the child calls `other` with its index and never returns.
static void start_thread(long index) {
    const word flags = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000;
    word top = (word)stacks[index] + sizeof stacks[index];
    long result;
    __asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tmov %%rbx, %%rdi\n\tcall other\n\t1:"
                     : "=a"(result)
                     : "a"(56L), "D"(flags), "S"(top), "b"(index)
                     : "rcx", "r11", "memory");
    if (result < 0) call(EXIT_GROUP, 10, 0, 0, 0);
}

static void check(int file, int pipe) {
    word block[BLOCK / 8], step = own[0].step[0];
    if (!pages_are_right(0)) call(EXIT_GROUP, 11, 0, 0, 0);
    char bytes[8];
    if (call(READ, pipe, (word)bytes, 8, 0) != 5) call(EXIT_GROUP, 14, 0, 0, 0);
    for (int at = 0; at < 5; at++)
        if (bytes[at] != "bytes"[at]) call(EXIT_GROUP, 15, 0, 0, 0);
    for (word slot = 0; slot < BLOCKS; slot++) {
        word wanted = last_of(step, slot, BLOCKS);
        if (call(PREAD, file, (word)block, BLOCK, slot * BLOCK) != BLOCK) call(EXIT_GROUP, 12, 0, 0, 0);
        for (int at = 0; at < BLOCK / 8; at++)
            if (block[at] != wanted) call(EXIT_GROUP, 13, 0, 0, 0);
    }
    call(EXIT_GROUP, 42, 0, 0, 0);
}

__attribute__((used)) static void begin(word *stack) {
    long threads = *(char *)stack[3] - '0', file;
    int ends[2];
    join(go, (char *)stack[2], "go");
    join(hold, (char *)stack[2], "hold");
    join(data, (char *)stack[2], "data");
    file = call(OPEN, (word)data, 01102, 0600, 0);
    if (file < 0 || call(FTRUNCATE, file, BLOCKS * BLOCK, 0, 0) || call(PIPE, (word)ends, 0, 0, 0))
        call(EXIT_GROUP, 16, 0, 0, 0);
    call(WRITE, ends[1], (word) "bytes", 5, 0);
    for (long index = 1; index < threads; index++) start_thread(index);
    while (!has_ended()) {
        word block[BLOCK / 8], step = own[0].step[0] + 1;
        while (exists(hold)) pause_ms(1);
        for (int at = 0; at < BLOCK / 8; at++) block[at] = step;
        // A restore is exact only if file and memory have the same step, whatever is interrupted.
        if (call(PWRITE, file, (word)block, BLOCK, step % BLOCKS * BLOCK) != BLOCK) call(EXIT_GROUP, 17, 0, 0, 0);
        advance(0);
        pause_ms(2);
    }
    for (long index = 1; index < threads; index++) {
        while (!ended[index]) pause_ms(1);
        if (ended[index] != 1) call(EXIT_GROUP, 18, 0, 0, 0);
    }
    check(file, ends[0]);
}

__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n");

// `undying` makes the program execute its calls with these instructions.
__asm__("restorer:\n\tmov $15, %rax\n\tsyscall\ncaller:\n\tsyscall\n\tret\n");
