/* A server in a chain of servers. It forwards each request to the next server over a new
 * connection. If this connection ends without an answer, the server repeats the request.
 *
 * link FILE NAME PORT NEXT DELAY: NEXT is the port of the next server, and 0 for the last server.
 * The server starts like a program that depends on another program: it waits for DELAY ms, connects
 * once to the next server, and then listens on PORT. A request is one line, and an answer is one
 * line. Each server appends its name to the answer. The last server appends "asked REQUEST" to
 * FILE, and answers when FILE.go exists. If connect(2) fails, the server appends "refused NAME" to
 * FILE and exits. If it cannot listen, it appends "deaf NAME" and exits. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINE_MAX_SIZE = 256 };

static const char *file, *name;

static void append(const char *word, const char *what) {
    char line[2 * LINE_MAX_SIZE];
    int length = snprintf(line, sizeof line, "%s %s\n", word, what);
    int to = open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (to < 0 || write(to, line, length) != length) {
        _exit(9);
    }
    close(to);
}

static struct sockaddr_in address_of(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static int connect_to(int port) {
    struct sockaddr_in address = address_of(port);
    int to = socket(AF_INET, SOCK_STREAM, 0);
    if (to < 0 || connect(to, (struct sockaddr *)&address, sizeof address) != 0) {
        append("refused", name);
        _exit(3);
    }
    return to;
}

static int listen_on(int port) {
    struct sockaddr_in address = address_of(port);
    int one = 1, on = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(on, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (on < 0 || bind(on, (struct sockaddr *)&address, sizeof address) != 0 || listen(on, 16) != 0) {
        append("deaf", name);
        _exit(4);
    }
    return on;
}

/* Reads a line without its line break. Returns 0 if the connection ends first. */
static int read_line(int from, char *line) {
    for (int length = 0; length < LINE_MAX_SIZE; length++) {
        if (recv(from, line + length, 1, 0) != 1) {
            return 0;
        }
        if (line[length] == '\n') {
            line[length] = 0;
            return 1;
        }
    }
    return 0;
}

static void send_line(int to, const char *line) {
    char text[LINE_MAX_SIZE + 1];
    int length = snprintf(text, sizeof text, "%s\n", line);
    /* If the peer is dead, the request is repeated, by this server or by the previous server. */
    send(to, text, length, MSG_NOSIGNAL);
}

static void ask_next(int port, const char *request, char *answer) {
    int is_answered = 0;
    while (!is_answered) {
        int to = connect_to(port);
        send_line(to, request);
        is_answered = read_line(to, answer);
        close(to);
    }
}

static void await_go(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s.go", file);
    while (access(path, F_OK) != 0) {
        usleep(2000);
    }
}

int main(int count, char **words) {
    if (count != 6) {
        return 2;
    }
    file = words[1], name = words[2];
    int port = atoi(words[3]), next = atoi(words[4]);
    usleep(atoi(words[5]) * 1000);
    if (next) {
        close(connect_to(next));
    }
    int listener = listen_on(port);
    for (;;) {
        char request[LINE_MAX_SIZE], found[LINE_MAX_SIZE], answer[LINE_MAX_SIZE];
        int client = accept(listener, NULL, NULL);
        if (client < 0) {
            return 5;
        }
        if (read_line(client, request)) {
            if (next) {
                ask_next(next, request, found);
            } else {
                append("asked", request);
                await_go();
                snprintf(found, sizeof found, "%s", request);
            }
            snprintf(answer, sizeof answer, "%.200s %s", found, name);
            send_line(client, answer);
        }
        close(client);
    }
}
