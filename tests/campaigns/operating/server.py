#!/usr/bin/env python3
"""A server that sends each received line back: `server.py ADDRESS [--quit SECONDS] [--behind ADDRESS]`.

ADDRESS is a port of 127.0.0.1, or the path of a Unix socket. After SIGTERM, the server closes its listening socket,
answers the lines that it has received, and ends after --quit. With --behind, it first sends each line to another server
over a new connection, and waits for the answer.
"""
import argparse
import os
import signal
import socket
import threading
import time

ATTEMPTS = 5


def listener(address):
    if address.isdigit():
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(("127.0.0.1", int(address)))
    else:
        own = socket.socket(socket.AF_UNIX)
        if os.path.exists(address):
            os.unlink(address)
        own.bind(address)
    own.listen(512)
    return own


def ask_behind(port, line):
    for attempt in range(ATTEMPTS):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as behind:
                behind.sendall(line)
                answer = behind.makefile("rb").readline()
                if answer:
                    return answer
        except OSError:
            time.sleep(0.01 * attempt)
    return b"the server behind does not answer\n"


class Server:
    def __init__(self, options):
        self.options, self.busy, self.lock = options, 0, threading.Lock()
        self.listener = listener(options.address)

    def serve(self, connection):
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                with self.lock:
                    self.busy += 1
                try:
                    connection.sendall(ask_behind(self.options.behind, line) if self.options.behind else line)
                except OSError:
                    return
                finally:
                    with self.lock:
                        self.busy -= 1

    def accept_all(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def end(self):
        """Closes the listening socket, and ends when each received line is answered."""
        self.listener.close()
        if not self.options.address.isdigit():
            os.unlink(self.options.address)
        time.sleep(self.options.quit)
        while self.busy:
            time.sleep(0.001)
        os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--quit", type=float, default=0)
    parser.add_argument("--behind", type=int)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    server = Server(parser.parse_args())
    threading.Thread(target=server.accept_all, daemon=True).start()
    signal.sigwait([signal.SIGTERM])
    server.end()


if __name__ == "__main__":
    main()
