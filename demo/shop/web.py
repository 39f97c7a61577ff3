"""A web service: it counts each request as a visit in redis, and replies with the count.

Usage: web.py PORT REDIS_PORT. The service has a pool of connections to redis. If a connection has ended, the service
repeats the command over another connection: over those of the pool, and over at most TRIES new ones.
"""
import http.server
import queue
import socket
import sys

PORT, REDIS_PORT = int(sys.argv[1]), int(sys.argv[2])
TRIES = 5
pool = queue.SimpleQueue()


class Redis:
    """One connection to redis."""

    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", REDIS_PORT))
        self.stream = self.socket.makefile("rb")

    def count(self):
        """Counts a visit, and returns its number. Returns None if the connection has ended before the reply."""
        try:
            self.socket.sendall(b"INCR visits\r\n")
            line = self.stream.readline()
        except OSError:
            return None
        return int(line[1:]) if line.endswith(b"\r\n") else None


def connections():
    while True:
        try:
            yield pool.get_nowait()
        except queue.Empty:
            break
    for _ in range(TRIES):
        yield Redis()


def visit():
    for redis in connections():
        if (number := redis.count()) is not None:
            pool.put(redis)
            return number
    raise ConnectionError(f"redis ended {TRIES} connections in succession")


class Page(http.server.BaseHTTPRequestHandler):
    """The only page of the service."""

    def do_GET(self):
        try:
            status, text = 200, f"visit {visit()}\n"
        except OSError as error:
            status, text = 502, f"{error}\n"
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class Service(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Prints nothing. A client that ends its connection is no error."""


Service(("127.0.0.1", PORT), Page).serve_forever()
