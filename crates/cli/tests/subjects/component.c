/*
 * A component of a system: `component FILE [listen=PORT] [delay=MS] [ready] [fd=N] [beat=MS] [stay]
 * [count] [keep] [path=FILE] [quit=MS]`.
 *
 * It appends `up PID` to FILE at its start, and `end PID` when SIGTERM ends it. The options are:
 *
 *   listen=PORT  listens on 127.0.0.1:PORT, and answers each connection with one line
 *   path=FILE    listens on the Unix socket FILE instead, which it unlinks before bind(2) and after SIGTERM
 *   quit=MS      after SIGTERM, closes the listening socket, and ends after this time
 *   keep         keeps the connections of up to 8 clients, and sends each received byte back
 *   delay=MS     delays the listening socket and the readiness message
 *   ready        reports readiness with sd_notify(3) and on standard output
 *   fd=N         reports readiness on descriptor N
 *   beat=MS      sends WATCHDOG=1 with this interval
 *   stay         ignores SIGTERM
 *   count        counts in memory, and writes the number to FILE.count about every 5 ms
 *
 * The file FILE.do contains a command, which the component executes once:
 *
 *   hang     does nothing any more
 *   fds      opens 500 descriptors
 *   eat      uses 64 MiB of memory
 *   trigger  sends WATCHDOG=trigger
 *   fork     forks a child, which sleeps in its own session, and exits with 0
 *   leave    forks a child, which sleeps in this session, without its environment; exits with 0 after 100 ms
 *   vanish   the same as leave, but the child has its own session, and the exit is immediate
 *   exit     exits with 3 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t asked_to_end;

static void end(int signal) {
    (void)signal;
    asked_to_end = 1;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void append(const char *file, const char *what) {
    char line[64];
    int length = snprintf(line, sizeof line, "%s %d\n", what, (int)getpid());
    int to = open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (to < 0 || write(to, line, length) != length) {
        exit(9);
    }
    close(to);
}

static void notify(const char *what) {
    const char *name = getenv("NOTIFY_SOCKET");
    if (name == NULL) {
        return;
    }
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, name, sizeof to.sun_path - 1);
    socklen_t length = offsetof(struct sockaddr_un, sun_path) + strlen(name);
    if (to.sun_path[0] == '@') {
        to.sun_path[0] = 0;
    } else {
        length++;
    }
    int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sendto(from, what, strlen(what), MSG_NOSIGNAL, (struct sockaddr *)&to, length);
    close(from);
}

static int listen_on(int port) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&own, sizeof own) != 0 || listen(listener, 64) != 0) {
        perror("listen");
        exit(8);
    }
    return listener;
}

static int listen_at(const char *path) {
    struct sockaddr_un own = {.sun_family = AF_UNIX};
    strncpy(own.sun_path, path, sizeof own.sun_path - 1);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(path);
    if (bind(listener, (struct sockaddr *)&own, sizeof own) != 0 || listen(listener, 64) != 0) {
        perror("listen");
        exit(8);
    }
    return listener;
}

static void obey(const char *word) {
    if (strcmp(word, "hang") == 0) {
        for (;;) {
            pause();
        }
    } else if (strcmp(word, "fds") == 0) {
        for (int count = 0; count < 500; count++) {
            open("/dev/null", O_RDONLY);
        }
    } else if (strcmp(word, "eat") == 0) {
        volatile char *eaten = malloc(64 << 20);
        for (long place = 0; place < 64 << 20; place += 4096) {
            eaten[place] = 7;
        }
    } else if (strcmp(word, "trigger") == 0) {
        notify("WATCHDOG=trigger");
    } else if (strcmp(word, "fork") == 0) {
        if (fork() != 0) {
            _exit(0);
        }
        setsid();
        for (;;) {
            pause();
        }
    } else if (strcmp(word, "leave") == 0 || strcmp(word, "vanish") == 0) {
        if (fork() != 0) {
            usleep(word[0] == 'l' ? 100000 : 0);
            _exit(0);
        }
        if (word[0] == 'v') {
            setsid();
        }
        for (char **variable = environ; *variable; variable++) {
            memset(*variable, 0, strlen(*variable));
        }
        for (;;) {
            pause();
        }
    } else if (strcmp(word, "exit") == 0) {
        _exit(3);
    }
}

int main(int count, char **words) {
    const char *file = words[1];
    int keeps = 0, clients[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const char *path = NULL;
    int quit = 0, port = 0, delay = 0, beat = 0, is_ready_told = 0, ready_fd = -1, counts = 0;
    for (int place = 2; place < count; place++) {
        const char *value = strchr(words[place], '=');
        int number = value ? atoi(value + 1) : 0;
        switch (words[place][0]) {
        case 'l': port = number; break;
        case 'd': delay = number; break;
        case 'b': beat = number; break;
        case 'r': is_ready_told = 1; break;
        case 'f': ready_fd = number; break;
        case 's': signal(SIGTERM, SIG_IGN); break;
        case 'c': counts = 1; break;
        case 'k': keeps = 1; break;
        case 'p': path = value + 1; break;
        case 'q': quit = number; break;
        }
    }
    struct sigaction on_end = {.sa_handler = end};
    struct sigaction before;
    sigaction(SIGTERM, NULL, &before);
    if (before.sa_handler != SIG_IGN) {
        sigaction(SIGTERM, &on_end, NULL);
    }
    append(file, "up");
    usleep(delay * 1000);
    int listener = port ? listen_on(port) : path ? listen_at(path) : -1;
    if (is_ready_told) {
        notify("READY=1\nSTATUS=at work");
        puts("listening now");
        fflush(stdout);
    }
    if (ready_fd >= 0) {
        if (write(ready_fd, "\n", 1) != 1) {
            return 7;
        }
        close(ready_fd);
    }
    char orders[4096], counter[4096];
    snprintf(orders, sizeof orders, "%s.do", file);
    snprintf(counter, sizeof counter, "%s.count", file);
    long next_beat = now_ms();
    for (unsigned long number = 1; !asked_to_end; number++) {
        if (beat && now_ms() >= next_beat) {
            notify("WATCHDOG=1");
            next_beat = now_ms() + beat;
        }
        if (counts) {
            char text[32];
            int to = open(counter, O_WRONLY | O_CREAT | O_TRUNC, 0644);
            int length = snprintf(text, sizeof text, "%lu\n", number);
            if (to < 0 || write(to, text, length) != length) {
                return 9;
            }
            close(to);
        }
        FILE *order = fopen(orders, "r");
        if (order) {
            char word[32] = "";
            if (fscanf(order, "%31s", word) == 1) {
                unlink(orders);
                fclose(order);
                obey(word);
            } else {
                fclose(order);
            }
        }
        struct pollfd waiting = {listener, POLLIN, 0};
        if (poll(&waiting, listener >= 0, 5) > 0) {
            int client = accept(listener, NULL, NULL);
            for (int place = 0; keeps && client >= 0 && place < 8; place++) {
                if (clients[place] < 0) {
                    clients[place] = client;
                    client = -1;
                }
            }
            if (client >= 0) {
                send(client, "well\n", 5, MSG_NOSIGNAL);
                close(client);
            }
        }
        for (int place = 0; place < 8; place++) {
            char byte;
            ssize_t got = clients[place] < 0 ? -1 : recv(clients[place], &byte, 1, MSG_DONTWAIT);
            if (got == 1) {
                send(clients[place], &byte, 1, MSG_NOSIGNAL);
            } else if (got == 0) {
                close(clients[place]);
                clients[place] = -1;
            }
        }
    }
    close(listener);
    if (path) {
        unlink(path);
    }
    usleep(quit * 1000);
    append(file, "end");
    return 0;
}
