#!/usr/bin/env python3
"""A web server with worker processes, which counts requests in redis over a Unix socket.

Usage: web.py PORT REDIS_SOCKET WORKERS

The answer to `GET /NAME` is the number of requests for NAME so far. If a worker ends, the server ends with status 1.
"""
import os
import select
import signal
import socket
import sys


def ask(redis, name):
    redis.sendall(b"INCR %s\r\n" % name)
    answer = b""
    while not answer.endswith(b"\r\n"):
        part = redis.recv(64)
        if not part:
            sys.exit(3)
        answer += part
    return answer[1:-2]


def work(listener, path):
    redis = socket.socket(socket.AF_UNIX)
    redis.connect(path)
    parts = {}
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    clients = {}
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                try:
                    client, _ = listener.accept()
                except BlockingIOError:
                    continue
                clients[client.fileno()], parts[client.fileno()] = client, b""
                poll.register(client.fileno(), select.EPOLLIN)
                continue
            client = clients[number]
            data = client.recv(4096)
            if not data:
                poll.unregister(number)
                clients.pop(number).close()
                continue
            parts[number] += data
            while b"\r\n\r\n" in parts[number]:
                request, parts[number] = parts[number].split(b"\r\n\r\n", 1)
                body = ask(redis, request.split()[1][1:])
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


def main():
    port, path, workers = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    listener.setblocking(False)
    for _ in range(workers):
        if os.fork() == 0:
            work(listener, path)
    signal.signal(signal.SIGTERM, lambda *_: (os.killpg(0, signal.SIGKILL)))
    os.wait()
    sys.exit(1)


main()
