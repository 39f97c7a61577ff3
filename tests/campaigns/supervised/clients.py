"""The clients of a server. Each asks until it is answered, and counts what it met on the way."""
import bisect
import collections
import threading
import time

from .connection import Connection, Ended, Failed

# The pauses between two requests of one client: of most, and of one that is idle nearly all of the time.
PAUSES_S, IDLE_S = (0.0, 0.01), (0.2, 0.6)
# The pause after a connection that failed.
FAILED_S = 0.005
# Most that waits for the last request of a client.
END_S = 90


class Client(threading.Thread):
    """`each`: a new connection for each request. `kept`: one connection, and the next one at its end. `idle`: the same
    with long pauses."""

    def __init__(self, server, kind, draw):
        super().__init__(daemon=True)
        self.server, self.kind, self.draw = server, kind, draw
        self.is_over, self.problem, self.connection = threading.Event(), None, None
        self.answered = self.ended = self.connected = 0
        self.failures, self.connect_s, self.request_s = collections.Counter(), 0.0, 0.0

    def run(self):
        try:
            number = 0
            while not self.is_over.is_set():
                number += 1
                self.request(number)
                self.is_over.wait(self.draw.uniform(*(IDLE_S if self.is_idle() else PAUSES_S)))
        except Exception as problem:  # a fault of the campaign itself is no row
            self.problem = problem
        finally:
            self.drop()

    def is_idle(self):
        return self.kind.startswith("idle")

    def request(self, number):
        """One request, asked again until it is answered."""
        begin = time.monotonic()
        while not self.attempt(number):
            if self.is_over.is_set():
                return
        self.request_s = max(self.request_s, time.monotonic() - begin)
        self.answered += 1

    def attempt(self, number):
        try:
            if self.connection is None:
                self.connect()
            self.turn(number)
        except Ended:
            self.ended += 1
            self.drop()
            return False
        except Failed as failure:
            self.failures[str(failure)] += 1
            self.drop()
            time.sleep(FAILED_S)
            return False
        if self.kind == "each":
            self.drop()
        return True

    def connect(self):
        self.connection = Connection(self.server.address)
        self.connected += 1
        self.connect_s = max(self.connect_s, self.connection.connect_s)

    def turn(self, number):
        self.server.ask(self.connection, number)

    def drop(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def stop(self):
        self.is_over.set()
        self.join(END_S)
        if self.is_alive():
            self.problem = RuntimeError("a client does not end")


class Numbered(Client):
    """A kept connection that writes 1, 2, 3 … to a key of its own, and reads each back. An idle one reads first as well:
    as long as its connection stays, what it wrote last has to be there.

    `history` has what the server had to hold from which moment on: a number that was answered, or one that was found at
    the first read after a return. `lost` counts answered numbers that were gone then; `found` has when the last number
    was held, when less was read, and what. `twice` counts unanswered numbers that had been written: the client asks
    again, so the server does these twice.
    """

    def __init__(self, server, number, draw, kind="numbered"):
        super().__init__(server, kind, draw)
        self.key = b"campaign-%s-%d" % (kind.encode()[:4], number)
        self.sent = self.holds = self.lost = self.losses = self.twice = 0  # losses: at how many reads
        self.history, self.found = [(0.0, 0)], []

    def connect(self):
        super().connect()
        self.compare(self.server.read(self.connection, self.key))

    def turn(self, number):
        """`number` is that of the request, also when it is asked again."""
        if self.is_idle() and self.server.read(self.connection, self.key) != self.holds:
            raise Failed("wrong answer: a connection that stayed has lost a number")
        self.sent = number
        self.server.write(self.connection, self.key, number)
        self.hold(number)
        self.compare(self.server.read(self.connection, self.key))

    def compare(self, value):
        """What is read must be what was answered last."""
        if value > self.sent:
            raise Failed("wrong answer: a number that was not sent")
        if value == self.holds:
            return
        if value < self.holds:
            self.found.append((self.history[-1][0], time.time(), value))
            self.lost += self.holds - value
            self.losses += 1
        else:
            self.twice += 1
        self.hold(value)

    def hold(self, number):
        self.holds = number
        self.history.append((time.time(), number))

    def held_at(self, moment):
        """What the server had to hold at a time."""
        return self.history[bisect.bisect_right(self.history, (moment, float("inf"))) - 1][1]


def clients_of(server, count, random_of):
    """So many of each kind."""
    found = [Client(server, kind, random_of(kind, number)) for kind in ("each", "kept") for number in range(count)
             if kind == "each" or not server.has_numbers]
    for number in range(count):
        draw = random_of("idle", number)
        if server.has_numbers:
            found += [Numbered(server, number, random_of("numbered", number)), Numbered(server, number, draw, "idle numbered")]
        else:
            found.append(Client(server, "idle", draw))
    return found
