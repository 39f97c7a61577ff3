"""A server on a Unix socket: answers each line with the same line. `echo.py PATH`."""
import os
import socketserver
import sys


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads, request_queue_size = True, 128


def main():
    path = sys.argv[1]
    # As most servers do: a socket that an earlier process has left is in the way of bind(2).
    if os.path.exists(path):
        os.unlink(path)
    Server(path, Echo).serve_forever()


main()
