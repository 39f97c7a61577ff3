"""Part one of the demo: kills redis-server with 200,000 keys while a client writes."""
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from guarded import Guarded, time_of
from screen import Failure, milliseconds, number

KEYS = 200_000
BATCH = 10_000
LOOK = 1000
WRITING_S = 2.0
# Tolerance for the time of refused connections, in seconds. The probe connects every millisecond, but on a loaded
# machine it may have to wait for a processor several times.
PROBE_SLACK_S = 0.2
LIMIT_S = 60


def run(screen, undying, folder):
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    redis = Guarded(undying, folder, "redis", command)
    screen.title(f"1. redis-server under `{redis.words}`")
    pid = redis.pid()
    screen.line("started", f"pid {pid}, listening on port {port}")
    probe = start_probe(port)
    keys = Keys(port)
    keys.load(screen)
    keys.start_writing()
    screen.wait("writing", WRITING_S, lambda: f"one client, key by key: {number(keys.written())} keys acknowledged")
    show_checkpoints(screen, redis)
    died = redis.kill()
    screen.line("killed", f"kill -9 {pid}")
    back, sequence, took = redis.wait_back()
    if back != pid:
        raise Failure(f"redis-server was restored with pid {back}, not with {pid}")
    screen.good("restored", f"with pid {pid} from checkpoint {sequence}, "
                            f"{milliseconds(took)} after undying noticed the death")
    keys.wait_writer()
    checkpoint = next(one for one in redis.checkpoints() if one["seq"] == sequence)
    verify(screen, keys, time_of(checkpoint), died)
    judge_probe(screen, stop_probe(probe), took)
    ask_anew(port)
    subprocess.run(["redis-cli", "-p", str(port), "shutdown", "nosave"], timeout=LIMIT_S, check=False)
    status = redis.wait_end()
    if status != 0:
        raise Failure(f"after SHUTDOWN, redis-server ended with status {status}:\n{redis.said()}")
    screen.line("ended", "redis-server ended with status 0 after SHUTDOWN")


class Keys:
    """The keys of the server, and the times at which redis acknowledged them."""

    def __init__(self, port):
        self.port = port
        # Pairs (key, time): at this time, all keys from 0 to `key` were acknowledged. Both values increase.
        self.acknowledged = []
        self.writer = None

    def written(self):
        return self.acknowledged[-1][0] + 1 if self.acknowledged else 0

    def load(self, screen):
        """Loads keys in batches with `redis-cli --pipe`. A batch is acknowledged when redis-cli ends."""
        began = time.monotonic()
        for first in range(0, KEYS, BATCH):
            commands = b"".join(set_command(key) for key in range(first, first + BATCH))
            done = subprocess.run(["redis-cli", "-p", str(self.port), "--pipe"], input=commands, timeout=LIMIT_S,
                                  capture_output=True, check=False)
            self.acknowledged.append((first + BATCH - 1, time.time()))
            if not re.search(rb"errors: 0, replies: %d\b" % BATCH, done.stdout):
                raise Failure(f"redis-cli --pipe failed: {done.stdout.decode()} {done.stderr.decode()}")
            rate = (first + BATCH) / (time.monotonic() - began)
            screen.progress("loading", first + BATCH, KEYS,
                            f"{number(first + BATCH)} keys by redis-cli --pipe, {number(int(rate))} per second")

    def start_writing(self):
        self.writer = threading.Thread(target=self.write, daemon=True)
        self.writer.start()

    def write(self):
        """Writes one key after the other until the connection ends."""
        try:
            with Redis(self.port) as client:
                for key in range(self.written(), sys.maxsize):
                    client.send(set_command(key))
                    if client.line() != b"+OK":
                        return
                    self.acknowledged.append((key, time.time()))
        except OSError:
            pass

    def wait_writer(self):
        self.writer.join(LIMIT_S)
        if self.writer.is_alive():
            raise Failure("the server died, but the connection of the client did not end")

    def until(self, moment):
        """Returns the number of keys that were acknowledged before the time `moment`."""
        older = [key for key, when in self.acknowledged if when < moment]
        return older[-1] + 1 if older else 0

    def missing(self, first, last):
        """Returns the keys from `first` to `last` - 1 that are missing or have a wrong value."""
        missing = []
        with Redis(self.port) as client:
            for start in range(first, last, LOOK):
                keys = range(start, min(start + LOOK, last))
                client.send(command(b"MGET", *(name_of(key) for key in keys)))
                missing += [key for key, value in zip(keys, client.values()) if value != value_of(key)]
        return missing


class Redis:
    """A connection to redis, with the part of the redis protocol that the demo needs."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self.stream = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def line(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError
        return line[:-2]

    def values(self):
        return [self.value(int(self.line()[1:])) for _ in range(int(self.line()[1:]))]

    def value(self, length):
        return self.stream.read(length + 2)[:-2] if length >= 0 else None


def name_of(key):
    return b"key:%d" % key


def value_of(key):
    return b"value-%x" % (key * 2654435761 % 2**32)


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def set_command(key):
    return command(b"SET", name_of(key), value_of(key))


def verify(screen, keys, checkpoint, died):
    older, all_keys = keys.until(checkpoint), keys.written()
    missing = keys.missing(0, older)
    if missing:
        raise Failure(f"{len(missing)} keys from before the checkpoint are lost; the first is {missing[0]}")
    screen.good("keys", f"all {number(older)} keys that were acknowledged before the checkpoint exist")
    lost = len(keys.missing(older, all_keys))
    screen.line("", f"{number(lost)} newer keys are lost: the client wrote them between checkpoint and death "
                    f"({milliseconds(died - checkpoint)})")


def show_checkpoints(screen, redis):
    status = redis.status()
    pause = status["pause_us"]
    screen.line("checkpoints", f"{status['checkpoints']} taken; pause {milliseconds(pause['p50'] / 1e6)} (median), "
                               f"{milliseconds(pause['max'] / 1e6)} (longest)")


def start_probe(port):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe.py")
    return subprocess.Popen([sys.executable, script, str(port)], stdout=subprocess.PIPE)


def stop_probe(probe):
    probe.send_signal(signal.SIGTERM)
    return json.loads(probe.communicate(timeout=LIMIT_S)[0])


def judge_probe(screen, met, took):
    if met["refuses_now"]:
        raise Failure("the restored listener still refuses connections")
    text = f"one connection per ms: {number(met['made'])} made, refused for at most {milliseconds(met['refused_s'])}"
    if met["unanswered"]:
        text += f", {met['unanswered']} not answered within a second"
    if met["refused_s"] > took + PROBE_SLACK_S:
        raise Failure(f"{text}, but the restore took only {milliseconds(took)}")
    screen.good("listener", f"{text} (the restore took {milliseconds(took)})")


def ask_anew(port):
    with Redis(port) as client:
        client.send(command(b"SET", b"after", b"all"))
        if client.line() != b"+OK":
            raise Failure("the restored redis-server accepts no new key")


def free_port():
    """Returns a free port below the range of ephemeral ports, so that no other program gets it while redis is dead."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) != 0:
                return port
