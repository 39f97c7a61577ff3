/* What the server and the clients of the drawing example share.
 *
 * A client connects to the Unix socket of the server, and receives two descriptors (SCM_RIGHTS): shared memory that
 * contains a `struct picture`, and an eventfd. The client then sends a number for each picture that it wants: 1, 2, 3
 * and so on. The server draws the picture of the next number into the shared memory, and signals the event. */
#ifndef PROTOCOL_H
#define PROTOCOL_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { HEIGHT = 22, WIDTH = 72, DESCRIPTORS = 2 };

struct picture {
    uint64_t number;
    char cells[HEIGHT][WIDTH];
};

/* Returns the character at a place of a picture: rings that move outwards. */
static inline char cell(uint64_t number, int y, int x)
{
    static const char shades[] = " .:-=+*#%@%#*+=-:.";
    int across = x - WIDTH / 2, down = 2 * (y - HEIGHT / 2);
    return shades[((across * across + down * down) / 24 + (sizeof shades - 1) - number % (sizeof shades - 1))
                  % (sizeof shades - 1)];
}

static inline struct sockaddr_un address(const char *path)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    return at;
}

/* The space of a control message with the descriptors. */
union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
};

#endif
