#!/usr/bin/env python3
"""How much disk space does the compression of unchanged segments of a log save, and what does it cost?

`undying run --compress CODEC` starts redis-server, and the bench fills it with --keys JSON records of about 150 bytes.
Then a client sets --rate keys per second, chosen from the share --hot of all keys. The other keys do not change. The
same run is also measured without compression.

Every 5 seconds, the bench writes a row of the `kind` "sample": the size of the log on the device, the number of
compressed segments, the processor time of undying, the checkpoint rate and the pauses. Pauses are those of the latest
checkpoints, as `status` reports them.

At the end, redis is killed and restored from the log. Each record must be the last value or an older value of its key.
The row of the `kind` "end" has the duration of the restore.

A full segment is observed for a minute before it is compressed. Therefore, a run must be longer than a minute.
"""
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from lib.harness import Rows, arguments, main, middle, on, plotter, read_rows, redis_answers, save, wait_for

QUESTION = "continuous_compress"
CODECS = ["none", "lz4", "zstd"]
COLUMNS = ["codec", "round", "kind", "second", "log_mib", "plain", "compressed", "undying_cpu_s", "redis_cpu_s",
           "rss_mib", "set", "checkpoints", "achieved_hz", "pause_us_p50", "pause_us_p99", "restore_ms",
           "checked", "load_average"]
SAMPLE_S = 5
FIRST = "Ada Alan Barbara Dennis Donald Edsger Frances Grace Jean John Ken Leslie Margaret Niklaus Radia Tony".split()
LAST = "Allen Backus Dijkstra Hamilton Hoare Hopper Kernighan Knuth Lamport Liskov Perlman Ritchie Sammet Wirth".split()


def record(key, version):
    """Returns the value of a key. It is computed from the key and the number of writes to it (`version`).

    The value is a JSON record with names, numbers, and 16 random hexadecimal digits.
    """
    draw = random.Random(key * 1000003 + version)
    first, last = draw.choice(FIRST), draw.choice(LAST)
    return json.dumps({"id": key, "version": version, "name": first + " " + last,
                       "mail": "%s.%s%d@example.org" % (first.lower(), last.lower(), key % 977),
                       "balance": draw.randrange(10 ** 7) / 100, "active": draw.random() < 0.8,
                       "token": "%016x" % draw.getrandbits(64)})


def set_line(key, version):
    key, value = "k%d" % key, record(key, version)
    return "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value)


class Server:
    """redis-server under `undying run`, in its own session."""

    def __init__(self, options, scratch, codec):
        self.port, self.keys = options.port, options.keys
        self.store = tempfile.mkdtemp(prefix="store-", dir=options.place or scratch)
        work = os.path.join(scratch, "redis")
        os.mkdir(work)
        self.command = [options.undying, "--store", self.store]
        self.log = open(os.path.join(scratch, "log"), "w")
        self.process = subprocess.Popen(
            [*self.command, "run", "--name", "redis", "--every", options.every, "--prefer", options.prefer,
             *([] if codec == "none" else ["--compress", codec]), "--", "redis-server", "--port", str(self.port),
             "--save", "", "--dir", work],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
            preexec_fn=on(os.sched_getaffinity(0), options.nice))
        wait_for(self.answers, "redis")
        self.pid = self.status()["pid"]

    def say(self, *words):
        return subprocess.run([*self.command, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout

    def status(self):
        return json.loads(self.say("status", "redis", "--json"))[0]

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def answers(self):
        if self.process.poll() is not None:
            raise RuntimeError("undying ended with status %d" % self.process.returncode)
        return redis_answers(self.port)

    def fill(self):
        with self.connect() as connection:
            answers = connection.makefile("rb")
            for first in range(0, self.keys, 1000):
                several = range(first, min(first + 1000, self.keys))
                connection.sendall("".join(set_line(key, 0) for key in several).encode())
                if any(answers.readline() != b"+OK\r\n" for _ in several):
                    raise RuntimeError("redis has rejected a SET")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        self.log.close()
        shutil.rmtree(self.store)


class Client(threading.Thread):
    """Sets keys of the share --hot at a constant rate. `versions` has the number of writes to each key."""

    def __init__(self, server, options):
        super().__init__(daemon=True)
        self.server, self.rate, self.draw = server, options.rate, random.Random(options.seed)
        self.versions, self.count, self.is_over = [0] * max(1, int(options.keys * options.hot)), 0, threading.Event()

    def run(self):
        due = time.monotonic()
        try:
            with self.server.connect() as connection:
                answers = connection.makefile("rb")
                while not self.is_over.is_set():
                    key = self.draw.randrange(len(self.versions))
                    # Counted before the key is sent, because redis may have stored a value without a reply.
                    self.versions[key] += 1
                    connection.sendall(set_line(key, self.versions[key]).encode())
                    if answers.readline() != b"+OK\r\n":
                        return
                    self.count += 1
                    due += 1 / self.rate
                    time.sleep(max(0.0, due - time.monotonic()))
        except OSError:
            # The server was killed.
            pass


def used(pid):
    """Returns the processor time of a process in s, and its resident memory in MiB."""
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    with open("/proc/%d/status" % pid) as file:
        rss = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), rss / 1024


def log_of(store):
    """Returns the size of the log on the device in MiB, and the numbers of uncompressed and of compressed segments."""
    size, plain, compressed = 0, 0, 0
    folder = os.path.join(store, "redis", "log")
    for name in os.listdir(folder):
        try:
            size += os.stat(os.path.join(folder, name)).st_blocks * 512
        except FileNotFoundError:
            continue
        plain += name.endswith(".seg")
        compressed += name.endswith((".lz4", ".zstd"))
    return size / 2**20, plain, compressed


def sample(server, client, begun):
    size, plain, compressed = log_of(server.store)
    status, (cpu, rss) = server.status(), used(server.process.pid)
    return dict(kind="sample", second=time.monotonic() - begun, log_mib=size, plain=plain, compressed=compressed,
                undying_cpu_s=cpu, redis_cpu_s=used(server.pid)[0], rss_mib=rss, set=client.count,
                checkpoints=status["checkpoints"], achieved_hz=status["achieved_hz"],
                pause_us_p50=status["pause_us"]["p50"], pause_us_p99=status["pause_us"]["p99"],
                load_average=os.getloadavg()[0])


def come_back(server, client):
    """Kills redis, and checks each record after the restore.

    Returns the duration of the restore in ms, and the number of correct records.
    """
    os.kill(server.pid, signal.SIGKILL)
    client.join(60)

    def back():
        events = [json.loads(line) for line in server.say("events", "redis", "--json").splitlines()]
        return [event for event in events if event["event"] == "restored"]
    wait_for(lambda: back() and server.answers(), "the restore of redis")
    with server.connect() as connection:
        answers = connection.makefile("rb")
        for first in range(0, server.keys, 1000):
            several = range(first, min(first + 1000, server.keys))
            connection.sendall("".join("GET k%d\r\n" % key for key in several).encode())
            for key in several:
                length = int(answers.readline()[1:])
                found = answers.read(length + 2)[:-2].decode() if length >= 0 else ""
                last = client.versions[key] if key < len(client.versions) else 0
                version = json.loads(found)["version"] if found else -1
                if not 0 <= version <= last or found != record(key, version):
                    raise RuntimeError("k%d is wrong after the restore: %r" % (key, found))
    return back()[-1]["took_us"] / 1000, server.keys


def measure(options, rows, scratch, codec, turn):
    scratch = os.path.join(scratch, "%s-%d" % (codec, turn))
    os.mkdir(scratch)
    server = Server(options, scratch, codec)
    try:
        server.fill()
        client = Client(server, options)
        client.start()
        begun, first = time.monotonic(), len(rows.rows)
        while time.monotonic() - begun < options.seconds:
            rows.add(codec=codec, round=turn, **sample(server, client, begun))
            time.sleep(SAMPLE_S)
        last = sample(server, client, begun)
        took, checked = come_back(server, client)
        rows.add(codec=codec, round=turn, **dict(last, kind="end", restore_ms=took, checked=checked))
        tell(rows.rows[first:])
    finally:
        server.stop()
        shutil.rmtree(scratch)


def tell(rows):
    end, begin = rows[-1], rows[0]
    over = lambda name: float(end[name]) - float(begin[name])
    print("%-5s log %6.1f MiB (%s of %d segments compressed), undying %.3f processors, %.2f Hz, pause p50 %.0f us "
          "(median of rows), p99 %.0f us, restored in %s ms, %s records correct" % (
              end["codec"], float(end["log_mib"]), end["compressed"], int(end["plain"]) + int(end["compressed"]),
              over("undying_cpu_s") / over("second"), over("checkpoints") / over("second"),
              middle([float(row["pause_us_p50"]) for row in rows]), middle([float(row["pause_us_p99"]) for row in rows]),
              end["restore_ms"], end["checked"]), flush=True)


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    figure, panes = plot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    colours = dict(none="0.5", lz4="#4c78a8", zstd="#f58518")
    for codec, turn in dict.fromkeys((row["codec"], row["round"]) for row in rows):
        mine = [row for row in rows if (row["codec"], row["round"]) == (codec, turn)]
        seconds = [float(row["second"]) for row in mine]
        label = codec if turn == "0" else None
        for pane, of in zip(panes, (lambda row: float(row["log_mib"]),
                                    lambda row: float(row["undying_cpu_s"]) - float(mine[0]["undying_cpu_s"]),
                                    lambda row: float(row["pause_us_p50"]) / 1000)):
            pane.plot(seconds, [of(row) for row in mine], color=colours[codec], label=label, lw=1.2)
    for pane, title in zip(panes, ("log on the device, MiB", "processor time of undying, s", "pause p50, ms")):
        pane.set_title(title)
        pane.set_xlabel("seconds since redis was filled")
        pane.set_ylim(bottom=0)
    panes[0].legend()
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = arguments(__doc__, driver="run")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="length of a run in seconds")
    parser.add_argument("--keys", type=int, default=500000)
    parser.add_argument("--hot", type=float, default=0.02, help="share of the keys that are set")
    parser.add_argument("--rate", type=float, default=500, help="keys that are set per second")
    parser.add_argument("--every", default="100ms")
    parser.add_argument("--port", type=int, default=7942)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--codec", help=",".join(CODECS))
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    if options.driver != "run":
        parser.error("only the driver `run` compresses logs")
    if not shutil.which("redis-server"):
        sys.exit("redis-server is missing; install the package redis-server")
    options.rounds = options.rounds or (1 if options.quick else 2)
    options.seconds = options.seconds or (150 if options.quick else 300)
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        for turn in range(options.rounds):
            for codec in (options.codec or ",".join(CODECS)).split(","):
                measure(options, rows, scratch, codec, turn)
    main(work)
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
