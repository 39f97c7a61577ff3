"""A server of two requests, one per line: `put N` is answered by `ok N`, and `list` by the stored numbers."""
import socket
import threading


def serve(port, put, stored):
    """Serves each connection in a thread. The requests of all connections are executed one after another."""
    listener, lock = socket.socket(), threading.Lock()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)

    def answer(line):
        with lock:
            if line.strip() == b"list":
                return " ".join(map(str, sorted(stored())))
            number = int(line.split()[1])
            put(number)
            return "ok %d" % number

    def attend(connection):
        with connection, connection.makefile("rb") as requests:
            for line in requests:
                connection.sendall(answer(line).encode() + b"\n")

    while True:
        threading.Thread(target=attend, args=(listener.accept()[0],), daemon=True).start()


def numbers_in(content):
    """Returns the numbers that are stored in a content, each at the offset 8 times the number."""
    return [number for place in range(8, len(content), 8) if (number := int.from_bytes(content[place:place + 8], "little"))]
