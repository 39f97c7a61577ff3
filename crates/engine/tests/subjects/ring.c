/* Three processes in a ring forward increasing numbers as fast as possible, with up to 256 numbers
 * in flight. Each process checks that no number is missing or duplicated.
 *
 * Shared memory contains the last number that was sent.
 *
 * Usage: ring FILE [PIDS]. FILE contains `ok N` with a recent number that has passed all processes, or
 * `broken N`. With PIDS, the three processes have no living parent, and the file PIDS contains their pids. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { UNDER_WAY = 256, TOLD_EACH = 64 };

static int said;
static volatile unsigned long *sent;

static void say(const char *what, unsigned long number)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%-6s %20lu\n", what, number);
    if (pwrite(said, line, length, 0) != length)
        _exit(1);
}

static void take(int from, unsigned long expected)
{
    unsigned long number;
    if (read(from, &number, sizeof number) != sizeof number || number != expected || *sent < number) {
        say("broken", expected);
        _exit(3);
    }
}

static void give(int to, unsigned long number)
{
    if (write(to, &number, sizeof number) != sizeof number)
        _exit(4);
}

static void pass_on(int from, int to)
{
    for (unsigned long number = 1;; number++) {
        take(from, number);
        give(to, number);
    }
}

int main(int argc, char **argv)
{
    int first[2], second[2], third[2];
    if (argc < 2 || pipe(first) || socketpair(AF_UNIX, SOCK_STREAM, 0, second) || pipe(third))
        return 2;
    said = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (said < 0)
        return 2;
    sent = mmap(NULL, sizeof *sent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[3] = { fork(), 0, 0 };
    if (pids[0] == 0) {
        if (argc == 2)
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        pass_on(first[0], second[0]);
    }
    pids[1] = fork();
    if (pids[1] == 0) {
        if (argc == 2)
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        pass_on(second[1], third[1]);
    }
    if (argc > 2 && (pids[2] = fork()) != 0) {
        FILE *file = fopen(argv[2], "w");
        return fprintf(file, "%d %d %d", pids[0], pids[1], pids[2]) < 0;
    }
    for (unsigned long number = 1;; number++) {
        while (*sent < number + UNDER_WAY) {
            unsigned long next = *sent + 1;
            *sent = next;
            give(first[1], next);
        }
        take(third[0], number);
        if (number % TOLD_EACH == 0)
            say("ok", number);
    }
}
