/* A server that draws pictures for clients into memory that they share, and a client that checks each picture.
 *
 * Usage: painter server SOCKET | painter client SOCKET FILE
 *
 * A client connects to the Unix socket, and receives the descriptors of the shared memory and of an event. It then asks
 * for picture 1, 2, 3 and so on. The server draws the picture with the number of requests that it has received from this
 * client, and signals the event. A lost or doubled request or picture shows in the number. FILE contains `ok N` or
 * `broken N`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { WORDS = 4096, CLIENTS = 8, TOLD_EACH = 16 };

struct client {
    int socket, event;
    volatile uint64_t *picture;
    uint64_t drawn;
};

static struct sockaddr_un address(const char *path)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    return at;
}

static volatile uint64_t *map(int memory)
{
    return mmap(NULL, WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
}

static void pass(int to, const int *descriptors)
{
    char byte = 0;
    union { struct cmsghdr header; char space[CMSG_SPACE(2 * sizeof(int))]; } control;
    struct iovec data = { &byte, 1 };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(header), descriptors, 2 * sizeof(int));
    if (sendmsg(to, &message, 0) != 1)
        exit(4);
}

static void receive(int from, int *descriptors)
{
    char byte;
    union { struct cmsghdr header; char space[CMSG_SPACE(2 * sizeof(int))]; } control;
    struct iovec data = { &byte, 1 };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control };
    if (recvmsg(from, &message, 0) != 1)
        exit(5);
    memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), 2 * sizeof(int));
}

static struct client admit(int listener)
{
    int own[2] = { memfd_create("picture", 0), eventfd(0, 0) };
    struct client client = { .socket = accept(listener, NULL, NULL), .event = own[1] };
    if (client.socket < 0 || own[0] < 0 || own[1] < 0 || ftruncate(own[0], WORDS * sizeof(uint64_t)))
        exit(6);
    client.picture = map(own[0]);
    pass(client.socket, own);
    close(own[0]);
    return client;
}

static int draw(struct client *client)
{
    uint64_t asked, one = 1;
    if (read(client->socket, &asked, sizeof asked) != sizeof asked)
        return 0;
    client->drawn++;
    for (int word = 0; word < WORDS; word++)
        client->picture[word] = client->drawn;
    if (write(client->event, &one, sizeof one) != sizeof one)
        exit(7);
    return 1;
}

/* Forgets a client that has ended. Returns the last client, which takes its place. */
static struct client dismiss(struct client gone, struct client last)
{
    close(gone.socket);
    close(gone.event);
    munmap((void *)gone.picture, WORDS * sizeof(uint64_t));
    return last;
}

static int serve(const char *path)
{
    struct sockaddr_un at = address(path);
    struct client clients[CLIENTS];
    int count = 0, listener = socket(AF_UNIX, SOCK_STREAM, 0);
    unlink(path);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, CLIENTS))
        return 2;
    for (;;) {
        struct pollfd waiting[CLIENTS + 1] = { { listener, count < CLIENTS ? POLLIN : 0, 0 } };
        for (int each = 0; each < count; each++)
            waiting[each + 1] = (struct pollfd){ clients[each].socket, POLLIN, 0 };
        if (poll(waiting, count + 1, -1) < 0)
            continue;
        for (int each = count - 1; each >= 0; each--)
            if (waiting[each + 1].revents && !draw(&clients[each]))
                clients[each] = dismiss(clients[each], clients[--count]);
        if (waiting[0].revents & POLLIN) {
            clients[count] = admit(listener);
            count++;
        }
    }
}

static void say(int file, const char *what, uint64_t number)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%-6s %20lu\n", what, (unsigned long)number);
    if (pwrite(file, line, length, 0) != length)
        exit(9);
}

static int check(const char *path, const char *name)
{
    struct sockaddr_un at = address(path);
    int given[2], file = open(name, O_RDWR | O_CREAT, 0600), server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (file < 0 || connect(server, (struct sockaddr *)&at, sizeof at))
        return 2;
    receive(server, given);
    volatile uint64_t *picture = map(given[0]);
    for (uint64_t number = 1;; number++) {
        uint64_t drawn;
        if (write(server, &number, sizeof number) != sizeof number
            || read(given[1], &drawn, sizeof drawn) != sizeof drawn)
            return 3;
        for (int word = 0; word < WORDS; word++)
            if (picture[word] != number || drawn != 1) {
                say(file, "broken", number);
                for (;;)
                    pause();
            }
        if (number % TOLD_EACH == 0)
            say(file, "ok", number);
        usleep(100);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "server") == 0)
        return serve(argv[2]);
    if (argc == 4 && strcmp(argv[1], "client") == 0)
        return check(argv[2], argv[3]);
    return 2;
}
