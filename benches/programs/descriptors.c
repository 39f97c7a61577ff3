/* Opens COUNT objects of one KIND, prints `ready PID`, and sleeps. Usage: descriptors KIND COUNT
 *
 * Kinds with one descriptor each: tcp (a connection to another process), listen, event, file. Kinds with two
 * descriptors each: inside (both ends of a TCP connection), unix (a socket pair), pipe, epoll (an epoll set and its
 * member). The kind `none` opens nothing. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void check(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

static int listener(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(fd, (struct sockaddr *)address, sizeof *address), "bind");
    check(listen(fd, 1024), "listen");
    check(getsockname(fd, (struct sockaddr *)address, &length), "getsockname");
    return fd;
}

static int dial(const struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(fd, (const struct sockaddr *)address, sizeof *address), "connect");
    return fd;
}

/* Starts the peer of the connections. The peer is a grandchild whose parent ends, so it does not belong to the process
 * tree of the subject. It ends when the subject has ended. */
static void serve(int fd, int count) {
    pid_t subject = getpid(), child = fork();
    if (child != 0)
        return;
    if (fork() != 0)
        _exit(0);
    for (int i = 0; i < count; i++)
        accept(fd, NULL, NULL);
    while (kill(subject, 0) == 0)
        sleep(1);
    _exit(0);
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "none";
    int count = argc > 2 ? atoi(argv[2]) : 0, ends[2];
    struct rlimit limit = {65536, 65536};
    struct sockaddr_in address;
    setrlimit(RLIMIT_NOFILE, &limit);
    signal(SIGCHLD, SIG_IGN);
    int outside = -1, server = -1;
    if (strcmp(kind, "tcp") == 0) {
        outside = listener(&address);
        serve(outside, count);
        close(outside);
    }
    if (strcmp(kind, "inside") == 0)
        server = listener(&address);
    for (int i = 0; i < count; i++) {
        if (outside >= 0) {
            dial(&address);
        } else if (server >= 0) {
            dial(&address);
            check(accept(server, NULL, NULL), "accept");
        } else if (strcmp(kind, "listen") == 0) {
            listener(&address);
        } else if (strcmp(kind, "unix") == 0) {
            check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
        } else if (strcmp(kind, "pipe") == 0) {
            check(pipe(ends), "pipe");
        } else if (strcmp(kind, "event") == 0) {
            check(eventfd(1, 0), "eventfd");
        } else if (strcmp(kind, "epoll") == 0) {
            struct epoll_event event = {.events = EPOLLIN};
            int set = epoll_create1(0), watched = eventfd(0, 0);
            check(epoll_ctl(set, EPOLL_CTL_ADD, watched, &event), "epoll_ctl");
        } else if (strcmp(kind, "file") == 0) {
            check(open("/etc/hostname", O_RDONLY), "open");
        }
    }
    printf("ready %d\n", getpid());
    fflush(stdout);
    for (;;)
        sleep(1000);
}
