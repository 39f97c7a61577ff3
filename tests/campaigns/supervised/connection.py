"""A blocking connection of a client. The exceptions distinguish failed and ended connections."""
import errno
import socket
import struct
import time

# A longer wait is the failure `timeout`. A restart takes much less time, even on a loaded machine.
LIMIT_S = 60


class Failed(Exception):
    """The connection was refused, or failed in another way than by its end. The text is the name of the error."""


class Ended(Exception):
    """An established connection ended: end of file or a reset."""


class Connection:
    """A connected socket. SO_RCVTIMEO limits its waits: connect(2) of a nonblocking Unix socket would not wait."""

    def __init__(self, address):
        self.buffer, begin = b"", time.monotonic()
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", LIMIT_S, 0))
        try:
            self.socket.connect(address)
        except OSError as failure:
            self.close()
            raise Failed("connect: " + name_of(failure)) from None
        self.connect_s = time.monotonic() - begin

    def close(self):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as failure:
            raise sort_of("send", failure) from None

    def line(self):
        """Receives a line. Returns the line without its line break."""
        while b"\n" not in self.buffer:
            self.receive()
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.rstrip(b"\r")

    def exactly(self, size):
        while len(self.buffer) < size:
            self.receive()
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found

    def receive(self):
        try:
            data = self.socket.recv(1 << 16)
        except OSError as failure:
            raise sort_of("receive", failure) from None
        if not data:
            raise Ended()
        self.buffer += data


def sort_of(call, failure):
    if failure.errno in (errno.ECONNRESET, errno.EPIPE):
        return Ended()
    return Failed("%s: %s" % (call, name_of(failure)))


def name_of(failure):
    if failure.errno in (errno.EAGAIN, errno.EINPROGRESS, errno.ETIMEDOUT):
        return "timeout"
    return errno.errorcode.get(failure.errno, str(failure))
