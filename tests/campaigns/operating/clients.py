"""The clients of one component, and what they meet."""
import collections
import errno
import socket
import threading
import time

LIMIT_S = 60
# A client that was refused tries again after this time.
PAUSE_S = 0.005
# The time between two lines of a client, so that the clients leave the processors to the components.
BETWEEN_S = 0.01


class Client(threading.Thread):
    """Sends numbered lines. Opens a connection for each line, or keeps its connection with `keeps`."""

    def __init__(self, component, address, keeps):
        super().__init__(daemon=True)
        self.component, self.address, self.keeps = component, address, keeps
        self.is_over, self.answered, self.longest = threading.Event(), 0, 0.0
        # The time and the name of each error.
        self.errors = []
        # For each error: the error of the connection, and the times of its beginning and of the question.
        self.details = []
        self.opened = self.asked = 0.0

    def connect(self):
        if isinstance(self.address, int):
            return socket.create_connection(("127.0.0.1", self.address), timeout=LIMIT_S)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(LIMIT_S)
        connection.connect(self.address)
        return connection

    def run(self):
        connection, number = None, 0
        while not self.is_over.is_set():
            begun, number = time.monotonic(), number + 1
            try:
                self.asked = begun
                if not connection:
                    self.opened = begun
                    connection = self.connect()
            except OSError as error:
                # A connection that is in no checkpoint yet is reset at a death, also before connect(2) has returned.
                is_reset = isinstance(error, ConnectionResetError)
                self.failed("ended" if is_reset else "connect: " + errno.errorcode.get(error.errno, str(error)), error)
                time.sleep(PAUSE_S)
                continue
            line = b"%d %d\n" % (id(self), number)
            try:
                connection.sendall(line)
                answer = b""
                while not answer.endswith(b"\n"):
                    part = connection.recv(4096)
                    if not part:
                        raise EOFError
                    answer += part
                if answer != line:
                    self.failed("answer: %r" % answer)
                self.answered += 1
            except (OSError, EOFError) as error:
                self.failed("ended" if isinstance(error, (EOFError, ConnectionError)) else "request: %s" % error, error)
                connection.close()
                connection = None
            self.longest = max(self.longest, time.monotonic() - begun)
            if connection and not self.keeps:
                connection.close()
                connection = None
            time.sleep(BETWEEN_S)

    def failed(self, what, error=None):
        self.errors.append((time.monotonic(), what))
        self.details.append((repr(error), self.opened, self.asked))


class Announced:
    """The times in which docs/operating announces errors of a component."""

    def __init__(self):
        self.windows = collections.defaultdict(list)

    def open(self, component, errors):
        window = [time.monotonic(), None, errors]
        self.windows[component].append(window)
        return window

    def has(self, component, at, what):
        """Reports whether an error was announced. A client can meet the error a second after its cause is over."""
        return any(begin <= at <= (end or at) + 1 and what in errors for begin, end, errors in self.windows[component])
