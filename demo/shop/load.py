"""A load generator: clients that request a page again and again, each time over a new connection.

Usage: load.py PORT FILE. The counters are in a shared mapping of FILE, so they survive when this program is killed. A
connection that ends without a complete reply is counted as cut, and the client repeats the request. At the first
complete reply, the program writes a line to descriptor 3. The line reports to `undying up` that the component is ready.
"""
import mmap
import os
import socket
import struct
import sys
import threading
import time

CLIENTS = 4
LIMIT_S = 10
# The time that a client rests between two requests.
REST_S = 0.01
REQUEST = b"GET / HTTP/1.0\r\n\r\n"
# The results of a request: answered, refused, failed with another error, or lost because this program was killed.
# `asked` counts all requests, and `cut` counts connections. `longest_us` is the longest time from the beginning of a
# request to its result, in microseconds.
RESULTS = ("answered", "refused", "failed", "lost")
FIELDS = ("asked", *RESULTS, "cut", "longest_us")
LAYOUT = struct.Struct(f"={len(FIELDS)}Q")


class Counts:
    """The counters, summed over all incarnations of this program."""

    def __init__(self, path):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, LAYOUT.size)
        self.memory = mmap.mmap(file, LAYOUT.size)
        self.lock = threading.Lock()
        before = read(self.memory)
        # The previous incarnation was killed during these requests.
        self.add("lost", before["asked"] - sum(before[name] for name in RESULTS))

    def add(self, name, count=1, took_us=0):
        with self.lock:
            counts = read(self.memory)
            counts[name] += count
            counts["longest_us"] = max(counts["longest_us"], took_us)
            self.memory[:] = LAYOUT.pack(*counts.values())


def read(memory):
    return dict(zip(FIELDS, LAYOUT.unpack_from(memory)))


def client(port, counts, first):
    while True:
        counts.add("asked")
        began = time.monotonic()
        while (result := ask(port)) == "cut":
            counts.add("cut")
        counts.add(result, took_us=int(1e6 * (time.monotonic() - began)))
        if result == "answered" and first.acquire(blocking=False):
            os.write(3, b"the first answer\n")
        time.sleep(REST_S)


def ask(port):
    """Sends one request over a new connection. Returns its result: 'answered', 'refused', 'failed' or 'cut'."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
            connection.sendall(REQUEST)
            while data := connection.recv(4096):
                answer += data
    except ConnectionRefusedError:
        return "refused"
    except ConnectionError:
        return "cut"
    except OSError:
        return "failed"
    head, _, body = answer.partition(b"\r\n\r\n")
    if not body.endswith(b"\n"):
        return "cut"
    return "answered" if head.split(None, 2)[1] == b"200" else "failed"


def main():
    port, counts, first = int(sys.argv[1]), Counts(sys.argv[2]), threading.Lock()
    for _ in range(CLIENTS):
        threading.Thread(target=client, args=(port, counts, first)).start()


if __name__ == "__main__":
    main()
