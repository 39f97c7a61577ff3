/* Three processes in a ring forward increasing numbers as fast as possible, with up to 256 numbers
 * in flight. Each process checks that no number is missing or duplicated.
 *
 * Usage: ring FILE. FILE contains `ok N` with a recent number that has passed all processes, or
 * `broken N`. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { UNDER_WAY = 256, TOLD_EACH = 64 };

static int said;

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
    if (read(from, &number, sizeof number) != sizeof number || number != expected) {
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
    prctl(PR_SET_PDEATHSIG, SIGKILL);
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
    if (fork() == 0)
        pass_on(first[0], second[0]);
    if (fork() == 0)
        pass_on(second[1], third[1]);
    unsigned long sent = 0;
    for (unsigned long number = 1;; number++) {
        while (sent < number + UNDER_WAY)
            give(first[1], ++sent);
        take(third[0], number);
        if (number % TOLD_EACH == 0)
            say("ok", number);
    }
}
