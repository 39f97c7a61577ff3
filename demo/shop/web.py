"""A web service: each request counts one visit in redis, and is answered with the count.

Usage: web.py PORT REDIS_PORT. It keeps a pool of connections to redis. A connection that has ended is replaced, and
redis is asked again.
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
        """The number of this visit; None if the connection has ended before the answer."""
        try:
            self.socket.sendall(b"INCR visits\r\n")
            line = self.stream.readline()
        except OSError:
            return None
        return int(line[1:]) if line.endswith(b"\r\n") else None


def connection():
    try:
        return pool.get_nowait()
    except queue.Empty:
        return Redis()


def visit():
    for _ in range(TRIES):
        redis = connection()
        if (number := redis.count()) is not None:
            pool.put(redis)
            return number
    raise ConnectionError(f"redis has ended {TRIES} connections in a row")


class Page(http.server.BaseHTTPRequestHandler):
    """The only page."""

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
        """A client that has gone is no news."""


Service(("127.0.0.1", PORT), Page).serve_forever()
