/* Draws pictures for clients, into memory that it shares with each of them. See protocol.h.
 *
 * Usage: server SOCKET */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "protocol.h"

enum { CLIENTS_MAX = 16 };

struct client {
    int socket, event;
    struct picture *picture;
    uint64_t drawn;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void pass(int to, const int *descriptors)
{
    char byte = 0;
    union control control = { 0 };
    struct iovec data = { &byte, 1 };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(DESCRIPTORS * sizeof(int));
    memcpy(CMSG_DATA(header), descriptors, DESCRIPTORS * sizeof(int));
    if (sendmsg(to, &message, MSG_NOSIGNAL) != 1)
        perror("pass descriptors");
}

static struct client admit(int listener)
{
    int own[DESCRIPTORS] = { memfd_create("picture", 0), eventfd(0, 0) };
    struct client client = { .socket = accept(listener, NULL, NULL), .event = own[1] };
    if (client.socket < 0 || own[0] < 0 || own[1] < 0 || ftruncate(own[0], sizeof *client.picture))
        fail("admit a client");
    client.picture = mmap(NULL, sizeof *client.picture, PROT_READ | PROT_WRITE, MAP_SHARED, own[0], 0);
    if (client.picture == MAP_FAILED)
        fail("map the picture");
    pass(client.socket, own);
    close(own[0]);
    return client;
}

/* Draws the next picture. Returns 0 if the client has ended. */
static int draw(struct client *client)
{
    uint64_t asked, one = 1;
    if (read(client->socket, &asked, sizeof asked) != sizeof asked)
        return 0;
    client->picture->number = ++client->drawn;
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++)
            client->picture->cells[y][x] = cell(client->drawn, y, x);
    if (write(client->event, &one, sizeof one) != sizeof one)
        fail("signal the event");
    return 1;
}

/* Forgets a client that has ended. Returns the last client, which takes its place. */
static struct client dismiss(struct client gone, struct client last)
{
    close(gone.socket);
    close(gone.event);
    munmap(gone.picture, sizeof *gone.picture);
    return last;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s SOCKET\n", argv[0]);
        return 2;
    }
    struct sockaddr_un at = address(argv[1]);
    struct client clients[CLIENTS_MAX];
    int count = 0, listener = socket(AF_UNIX, SOCK_STREAM, 0);
    unlink(argv[1]);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, CLIENTS_MAX))
        fail("listen");
    for (;;) {
        struct pollfd waiting[CLIENTS_MAX + 1] = { { listener, count < CLIENTS_MAX ? POLLIN : 0, 0 } };
        for (int each = 0; each < count; each++)
            waiting[each + 1] = (struct pollfd){ clients[each].socket, POLLIN, 0 };
        if (poll(waiting, count + 1, -1) < 0)
            continue;
        for (int each = count - 1; each >= 0; each--)
            if (waiting[each + 1].revents && !draw(&clients[each])) {
                count--;
                clients[each] = dismiss(clients[each], clients[count]);
            }
        if (waiting[0].revents & POLLIN) {
            clients[count] = admit(listener);
            count++;
        }
    }
}
