"""A proxy: forwards the bytes of each connection to the web service and back.

Usage: proxy.py PORT WEB_PORT. When the web service or the client ends its connection, the proxy ends the other
connection. If the web service refuses a connection, the client gets status 502.
"""
import select
import socket
import socketserver
import sys

PORT, WEB_PORT = int(sys.argv[1]), int(sys.argv[2])
REFUSED = b"HTTP/1.0 502 Bad Gateway\r\n\r\nthe web service refuses connections\n"


class Connection(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            web = socket.create_connection(("127.0.0.1", WEB_PORT))
        except ConnectionRefusedError:
            self.request.sendall(REFUSED)
            return
        with web:
            other = {self.request: web, web: self.request}
            while all(copy(source, other[source]) for source in select.select(other, [], [])[0]):
                pass


def copy(source, sink):
    """Forwards the available data. Returns False at the end of the connection."""
    data = source.recv(65536)
    sink.sendall(data)
    return bool(data)


class Proxy(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, *_):
        """Prints nothing. A connection that a peer resets is no error."""


Proxy(("127.0.0.1", PORT), Connection).serve_forever()
