"""A server on a Unix socket, which sends each received line back. Usage: echo.py PATH"""
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
    # Like most servers, removes the socket of an earlier process: otherwise bind(2) fails with EADDRINUSE.
    if os.path.exists(path):
        os.unlink(path)
    Server(path, Echo).serve_forever()


main()
