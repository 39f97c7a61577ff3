/* Asks the server for one picture after the other, checks each picture, and shows it on a terminal. See protocol.h.
 *
 * Usage: client SOCKET FILE
 *
 * FILE contains `ok N` with the number of the last right picture, or `broken N`: picture N was lost, drawn twice or
 * drawn wrongly. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "protocol.h"

enum { BETWEEN_US = 200, BETWEEN_SHOWN_US = 40000 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void receive(int from, int *descriptors)
{
    char byte;
    union control control;
    struct iovec data = { &byte, 1 };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control };
    if (recvmsg(from, &message, 0) != 1)
        fail("receive descriptors");
    memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), DESCRIPTORS * sizeof(int));
}

static int is_right(const struct picture *picture, uint64_t number)
{
    if (picture->number != number)
        return 0;
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++)
            if (picture->cells[y][x] != cell(number, y, x))
                return 0;
    return 1;
}

static void say(int file, const char *what, uint64_t number)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%-6s %20lu\n", what, (unsigned long)number);
    if (pwrite(file, line, length, 0) != length)
        fail("write");
}

static void show(const struct picture *picture)
{
    printf("\033[H");
    for (int y = 0; y < HEIGHT; y++)
        printf("%.*s\n", WIDTH, picture->cells[y]);
    printf("picture %lu\033[K\n", (unsigned long)picture->number);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s SOCKET FILE\n", argv[0]);
        return 2;
    }
    struct sockaddr_un at = address(argv[1]);
    int given[DESCRIPTORS], is_shown = isatty(1), server = socket(AF_UNIX, SOCK_STREAM, 0);
    int file = open(argv[2], O_RDWR | O_CREAT, 0600);
    if (file < 0 || connect(server, (struct sockaddr *)&at, sizeof at))
        fail("connect");
    receive(server, given);
    struct picture *picture = mmap(NULL, sizeof *picture, PROT_READ, MAP_SHARED, given[0], 0);
    if (picture == MAP_FAILED)
        fail("map the picture");
    for (uint64_t number = 1;; number++) {
        uint64_t signals;
        if (write(server, &number, sizeof number) != sizeof number
            || read(given[1], &signals, sizeof signals) != sizeof signals)
            fail("ask for a picture");
        if (signals != 1 || !is_right(picture, number)) {
            say(file, "broken", number);
            for (;;)
                pause();
        }
        say(file, "ok", number);
        if (is_shown)
            show(picture);
        usleep(is_shown ? BETWEEN_SHOWN_US : BETWEEN_US);
    }
}
