"""Clients of a server. A client repeats each request until it receives the reply, and counts the errors meanwhile."""
import bisect
import collections
import threading
import time

from .connection import Connection, Ended, Failed

# Shortest and longest pause between two requests of a client, and of an idle client.
PAUSES_S, IDLE_S = (0.0, 0.01), (0.2, 0.6)
# Pause after a failed connection.
FAILED_S = 0.005
# Time limit of the last request of a client.
END_S = 90


class Client(threading.Thread):
    """A client of one of three kinds.

    `each`: opens a new connection for each request. `kept`: keeps a connection, and opens the next when it ends.
    `idle`: like `kept`, with long pauses between requests.
    """

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
        except Exception as problem:  # An error of the campaign itself is reported as the problem of this client.
            self.problem = problem
        finally:
            self.drop()

    def is_idle(self):
        return self.kind.startswith("idle")

    def request(self, number):
        """Sends one request, and repeats it until the reply arrives."""
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
            self.problem = RuntimeError("the client does not end")


class Numbered(Client):
    """A client with a kept connection, which writes 1, 2, 3 … to its own key, and reads each number back.

    An idle client also reads before it writes. While its connection stays open, it must read the number that it wrote
    last.

    `history` lists the numbers that the server must have, each with the time from which it must have the number. Such a
    number was acknowledged, or was found by the first read of a new connection. `lost` counts acknowledged numbers that
    were missing then. `found` has an entry for each read of a smaller number: the time at which the expected number was
    recorded, the time of the read, and the smaller number. `twice` counts numbers that the server has written without a
    reply to the client. The client repeats these requests, so the server executes them twice.
    """

    def __init__(self, server, number, draw, kind="numbered"):
        super().__init__(server, kind, draw)
        self.key = b"campaign-%s-%d" % (kind.encode()[:4], number)
        self.sent = self.holds = self.lost = self.losses = self.twice = 0  # losses: number of reads that found a loss
        self.history, self.found = [(0.0, 0)], []

    def connect(self):
        super().connect()
        self.compare(self.server.read(self.connection, self.key))

    def turn(self, number):
        """Writes `number`, the number of the request. A repeated request has the same number."""
        if self.is_idle() and self.server.read(self.connection, self.key) != self.holds:
            raise Failed("wrong reply: a number is lost although its connection stayed open")
        self.sent = number
        self.server.write(self.connection, self.key, number)
        self.hold(number)
        self.compare(self.server.read(self.connection, self.key))

    def compare(self, value):
        """Compares a value that was read with the last acknowledged number, and counts the difference."""
        if value > self.sent:
            raise Failed("wrong reply: a number that was not sent")
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
        """Returns the number that the server had to have at a time."""
        return self.history[bisect.bisect_right(self.history, (moment, float("inf"))) - 1][1]


def clients_of(server, count, random_of):
    """Returns `count` clients of each kind that fits the server."""
    found = [Client(server, kind, random_of(kind, number)) for kind in ("each", "kept") for number in range(count)
             if kind == "each" or not server.has_numbers]
    for number in range(count):
        draw = random_of("idle", number)
        if server.has_numbers:
            found += [Numbered(server, number, random_of("numbered", number)), Numbered(server, number, draw, "idle numbered")]
        else:
            found.append(Client(server, "idle", draw))
    return found
