#!/usr/bin/env python3
"""Does redis run correctly for a long time under continuous checkpoints: no leak, no slowdown, no lost reply?

`undying run --every 10ms` starts redis-server. benches/programs/redis_load.c loads redis at a constant rate. An
additional client writes increasing numbers to slots (keys of redis), and reads them back.

Every 10 seconds, the campaign writes a row. It contains memory, descriptors and threads of `undying` and of redis, the
size of the store, and values from `undying status`. At the end, redis is killed with SIGKILL. `undying` must restore it
with all numbers that were acknowledged before the checkpoint. No slot may contain a number that no client has sent.

Writes soak_redis-TAG.csv, soak_redis-TAG.txt (the findings) and soak_redis-TAG.png. Exits with 1 if a condition did not
hold.
"""
import collections
import csv
import datetime
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import campaign
from campaign import arguments, say_to
from lib.harness import build, on, plotter, quantile, read_rows, redis_answers, save, wait_for

SLOTS = 1000
# The store grows until its oldest checkpoint is removed. This checkpoint is at most 20 minutes old, which is twice the
# largest age limit of the retention policy.
STORE_WARM_UP_S = 1200
# Columns that must not rise after the warm-up. Each value is the allowed rise over the whole run, divided by the mean.
LIMITS = {"undying_rss_kib": 0.05, "undying_fds": 0.1, "undying_threads": 0.0, "redis_rss_kib": 0.05, "redis_fds": 0.0,
          "redis_maps": 0.05, "log_kib": 0.25}
COLUMNS = ["second", "undying_rss_kib", "undying_anon_kib", "undying_fds", "undying_threads", "undying_cpu_s",
           "redis_rss_kib", "redis_fds", "redis_maps", "redis_cpu_s", "log_kib", "log_files", "records_kib",
           "checkpoints", "achieved_hz", "in_flight", "pause_us_p50", "pause_us_p99", "pause_us_max", "held_back",
           "refusals", "load_average"]


class Server:
    """The process `undying run` with redis-server, in its own session."""

    def __init__(self, options, scratch):
        self.options, self.scratch, self.store = options, scratch, os.path.join(scratch, "store")
        self.command = [options.undying, "--store", self.store]
        self.log = open(os.path.join(options.out, "soak_redis-%s.log" % options.tag), "w")
        self.process = subprocess.Popen(
            [*self.command, "run", "--name", "redis", "--every", options.every, "--keep", "8", "--", "redis-server",
             "--port", str(options.port), "--save", "", "--dir", scratch],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
            preexec_fn=on(os.sched_getaffinity(0), options.nice))
        wait_for(self.answers, "redis")
        # The program runs before its guardian has published the first status.
        wait_for(lambda: say_to(self.command, "status", "redis", "--json").stdout, "the status")
        self.pid = self.status()["pid"]

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.options.port), timeout=60)

    def answers(self):
        return redis_answers(self.options.port)

    def status(self):
        return json.loads(say_to(self.command, "status", "redis", "--json").stdout)[0]

    def events(self):
        return [json.loads(line) for line in say_to(self.command, "events", "redis", "--json").stdout.splitlines()]


class Client(threading.Thread):
    """Writes increasing numbers to slots, and reads them back. Records the last sent and the acknowledged numbers."""

    def __init__(self, server, rate, seed):
        super().__init__(daemon=True)
        self.server, self.rate, self.draw = server, rate, random.Random(seed)
        self.sent, self.answered = [0] * SLOTS, [collections.deque([(0.0, 0)], maxlen=64) for _ in range(SLOTS)]
        self.is_over, self.failures, self.count, self.lost = threading.Event(), [], 0, None

    def run(self):
        with self.server.connect() as connection:
            answers, due = connection.makefile("rb"), time.monotonic()
            while not self.is_over.is_set():
                try:
                    self.turn(connection, answers)
                except (OSError, EOFError) as failure:
                    self.lost = (time.time(), failure)
                    return
                due += 1 / self.rate
                time.sleep(max(0.0, due - time.monotonic()))

    def turn(self, connection, answers):
        slot = self.draw.randrange(SLOTS)
        self.sent[slot] += 1
        number = self.sent[slot]
        connection.sendall(b"SET c%d %d\r\n" % (slot, number))
        if ask(answers) != "OK":
            self.failures.append("the reply to SET c%d is not OK" % slot)
        self.answered[slot].append((time.time(), number))
        other = self.draw.randrange(SLOTS)
        connection.sendall(b"GET c%d\r\n" % other)
        found, last = ask(answers), self.answered[other][-1][1]
        if int(found or 0) != last:
            self.failures.append("c%d is %s, not %d" % (other, found, last))
        self.count += 1


def ask(answers):
    """Reads the next reply. Returns its text, or None if the key does not exist."""
    line = answers.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError("the connection was closed")
    if line[:1] != b"$":
        return line[1:-2].decode()
    length = int(line[1:])
    return None if length < 0 else answers.read(length + 2)[:-2].decode()


# Samples ------------------------------------------------------------------------------------------------------------

def process(pid):
    with open("/proc/%d/status" % pid) as file:
        status = dict(line.split(":", 1) for line in file)
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    with open("/proc/%d/maps" % pid) as file:
        maps = sum(1 for _ in file)
    size = lambda name: int(status[name].split()[0])
    return {"rss_kib": size("VmRSS"), "anon_kib": size("RssAnon"), "fds": len(os.listdir("/proc/%d/fd" % pid)),
            "threads": size("Threads"), "maps": maps,
            "cpu_s": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")}


def disk(folder):
    """Returns the allocated size in KiB, and the number of the files below a directory."""
    sizes = []
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(place, name)).st_blocks // 2)
            except FileNotFoundError:
                pass
    return sum(sizes), len(sizes)


def sample(server, second):
    undying, redis, status = process(server.process.pid), process(server.pid), server.status()
    whole, log = disk(server.store), disk(os.path.join(server.store, "redis", "log"))
    total = lambda name: sum(one["count"] for one in status[name])
    return {"second": round(second, 1), **{"undying_" + name: undying[name] for name in
                                           ("rss_kib", "anon_kib", "fds", "threads", "cpu_s")},
            **{"redis_" + name: redis[name] for name in ("rss_kib", "fds", "maps", "cpu_s")},
            "log_kib": log[0], "log_files": log[1], "records_kib": whole[0] - log[0],
            "checkpoints": status["checkpoints"], "achieved_hz": round(status["achieved_hz"], 3),
            "in_flight": status["in_flight"], **{"pause_us_" + name: status["pause_us"][name] for name in
                                                 ("p50", "p99", "max")},
            "held_back": total("held_back"), "refusals": total("refusals"), "load_average": os.getloadavg()[0]}


def slope(rows, name):
    """Fits a line to a column by least squares. Returns the rise over the time of the rows, and the mean."""
    xs, ys = [float(row["second"]) for row in rows], [float(row[name]) for row in rows]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    square = sum((one - x) ** 2 for one in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / square * (xs[-1] - xs[0]), y


# Findings -----------------------------------------------------------------------------------------------------------

class Findings(campaign.Findings):
    """Findings that record whether all conditions have held so far."""

    held = True

    def check(self, holds, line):
        self.held &= bool(holds)
        self.say(("held: " if holds else "DID NOT HOLD: ") + line)


class Spoken(Findings):
    """Findings about the rows of an earlier run. They are printed, and not written to a file."""

    def __init__(self):
        pass

    def say(self, line):
        print(line)


def leaks(samples, findings, warm_up):
    for name, limit in LIMITS.items():
        begin = max(warm_up, STORE_WARM_UP_S) if name == "log_kib" else warm_up
        rows = [row for row in samples if float(row["second"]) >= begin]
        if len(rows) < 3:
            findings.say("%s: too short for a slope" % name)
            continue
        rise, mean = slope(rows, name)
        findings.check(rise <= limit * mean + 1e-6, "%-16s mean %10.1f, rise by regression %+9.2f (%+.2f %%), first %s, "
                       "last %s" % (name, mean, rise, 100 * rise / mean if mean else 0.0, rows[0][name], rows[-1][name]))
    rise, mean = slope(samples, "records_kib")
    findings.say("records_kib: mean %.1f, rise %+.1f" % (mean, rise))


def drift(rows, taken, begun, findings, stretch, is_short):
    """Compares rate and pauses of the first and the last `stretch` seconds. Also reports the load of the machine."""
    at = lambda event: datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()
    times = [(at(event) - begun, event["pause_us"]) for event in taken]
    end = float(rows[-1]["second"])
    parts = {"first": [p for t, p in times if 0 <= t < stretch], "last": [p for t, p in times if end - stretch <= t < end]}
    figures = {name: (len(found) / stretch, quantile(found, 0.5), quantile(found, 0.99), quantile(found, 1.0))
               for name, found in parts.items()}
    loads = {"first": [row for row in rows if row["second"] < stretch], "last": [row for row in rows if row["second"] >= end - stretch]}
    for name, found in figures.items():
        findings.say("%s %d s: %.3f Hz, pause p50 %.0f us, p99 %.0f us, max %.0f us; load average %.1f" % (
            name, stretch, *found, sum(row["load_average"] for row in loads[name]) / max(1, len(loads[name]))))
    first, last = figures["first"], figures["last"]
    if is_short:
        return
    findings.check(last[0] >= 0.95 * first[0], "the rate: %.3f to %.3f Hz" % (first[0], last[0]))
    findings.check(last[2] <= 1.5 * first[2], "the pause p99: %.0f to %.0f us" % (first[2], last[2]))


def come_back(server, client, findings):
    """Kills redis, and checks the restored server."""
    before = server.status()
    killed = time.time()
    os.kill(server.pid, signal.SIGKILL)
    restored = lambda: [event for event in server.events() if event["event"] == "restored"]
    wait_for(lambda: restored() and server.answers(), "redis to come back")
    # A connection that was idle at the kill can stay open. Then the client continues.
    client.is_over.set()
    client.join(30)
    findings.check(not client.is_alive(), "the connection of the client %s"
                   % ("ended: %s" % (client.lost,) if client.lost else "stayed open"))
    back = restored()[-1]
    taken = next((event for event in server.events() if event["event"] == "checkpoint" and event["seq"] == back["seq"]), None)
    if taken:
        moment = datetime.datetime.fromisoformat(taken["time"].replace("Z", "+00:00")).timestamp()
    else:
        findings.say("no event reports checkpoint %d" % back["seq"])
        moment = killed - 1
    findings.say("killed after %d checkpoints; restored at %d in %d us, taken %.1f ms before the kill" % (
        before["checkpoints"], back["seq"], back["took_us"], 1000 * (killed - moment)))
    lost = kept = younger = 0
    with server.connect() as connection:
        answers = connection.makefile("rb")
        for slot in range(SLOTS):
            connection.sendall(b"GET c%d\r\n" % slot)
            found = int(ask(answers) or 0)
            acknowledged = max(number for when, number in client.answered[slot] if when <= moment)
            lost += found < acknowledged
            younger += found > client.sent[slot]
            kept += 1
        findings.check(lost == 0 and younger == 0,
                       "%d slots: %d lost an acknowledged number, %d contain a number that was not sent"
                       % (kept, lost, younger))
        keys(connection, answers, server.options.keys, findings)
    newest_kept = max(number for slot in range(SLOTS) for _, number in client.answered[slot])
    findings.say("numbers that the client has written and read: %d; highest number: %d" % (client.count, newest_kept))
    server.pid = server.status()["pid"]


def keys(connection, answers, count, findings):
    """Checks that each key of the load exists, with its first value or with the value that the load writes."""
    wrong = loaded = 0
    for first in range(0, count, 1000):
        several = range(first, min(first + 1000, count))
        connection.sendall(b"".join(b"GET k%d\r\n" % key for key in several))
        for key in several:
            found = ask(answers)
            loaded += found == "v" * 100
            wrong += found not in ("v" * 100, "%0100d" % key)
    findings.check(wrong == 0, "%d keys of the load: %d are wrong (the load had written %d)" % (count, wrong, loaded))


# The run ------------------------------------------------------------------------------------------------------------

def fill(server, count):
    with server.connect() as connection:
        answers = connection.makefile("rb")
        for first in range(0, count, 1000):
            several = range(first, min(first + 1000, count))
            connection.sendall(b"".join(b"SET k%d %0100d\r\n" % (key, key) for key in several))
            if any(ask(answers) != "OK" for _ in several):
                raise RuntimeError("cannot write the keys to redis")


def soak(options, scratch, rows, findings):
    server = Server(options, scratch)
    events = open(os.path.join(scratch, "events"), "w")
    follower = None
    try:
        fill(server, options.keys)
        follower = subprocess.Popen([*server.command, "events", "redis", "-f", "--json"], stdout=events, stdin=subprocess.DEVNULL)
        client = Client(server, options.client_rate, options.seed)
        client.start()
        load = subprocess.Popen([build("redis_load", scratch), "port=%d" % options.port, "seconds=%g" % options.seconds,
                                 "rate=%d" % options.rate, "keys=%d" % options.keys, "connections=20", "set=1", "get=4",
                                 "seed=%d" % options.seed], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                start_new_session=True, preexec_fn=on(os.sched_getaffinity(0), options.nice))
        begun = time.time()
        while load.poll() is None:
            rows.append(sample(server, time.time() - begun))
            options.writer.writerow(rows[-1])
            options.raw.flush()
            wait = begun + len(rows) * options.sample - time.time()
            try:
                load.wait(max(0.1, wait))
            except subprocess.TimeoutExpired:
                pass
            if server.process.poll() is not None:
                raise RuntimeError("undying exited with %d" % server.process.returncode)
        findings.check(load.returncode == 0, "the load: %s" % load.stdout.read().strip())
        come_back(server, client, findings)
        findings.check(not client.failures, "replies before the kill: %s" % (client.failures[:3] or "all correct"))
        status = server.status()
        findings.check(status["restarts"] == 1, "restarts, of which exactly one is expected: %d" % status["restarts"])
        findings.say("refusals: %s; held back: %s" % (status["refusals"], status["held_back"]))
        time.sleep(1)
    finally:
        for one in (follower, server.process):
            if one and one.poll() is None:
                one.terminate()
                one.wait(30)
        events.close()
    with open(events.name) as file:
        taken = [event for event in map(json.loads, file) if event["event"] == "checkpoint"]
    numbers = [event["seq"] for event in taken]
    findings.say("reported checkpoints: %d, highest sequence number %d" % (len(numbers), max(numbers)))
    drift(rows, taken, begun, findings, options.stretch, options.short)


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    minutes = [float(row["second"]) / 60 for row in rows]
    panes = [("memory of undying, MiB", [("undying_rss_kib", 1024), ("undying_anon_kib", 1024)]),
             ("memory of redis, MiB", [("redis_rss_kib", 1024)]), ("descriptors", [("undying_fds", 1), ("redis_fds", 1)]),
             ("store, MiB", [("log_kib", 1024), ("records_kib", 1024)]), ("achieved, Hz", [("achieved_hz", 1)]),
             ("pause from status, ms", [("pause_us_p50", 1000), ("pause_us_p99", 1000)])]
    figure, grid = plot.subplots(3, 2, figsize=(10, 7.5), layout="constrained", sharex=True)
    for pane, (title, lines) in zip(grid.flat, panes):
        for name, unit in lines:
            pane.plot(minutes, [float(row[name]) / unit for row in rows], label=name, lw=1)
        pane.set_title(title)
        pane.set_ylim(bottom=0)
        pane.legend()
    for pane in grid[-1]:
        pane.set_xlabel("minutes")
    save(plot, figure, path.replace(".csv", ".png"))


def free_port():
    for port in range(7981, 8081):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise RuntimeError("the ports 7981 to 8080 are in use")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--rate", type=int, default=2000, help="requests of the load per second, constant")
    parser.add_argument("--client-rate", type=int, default=50, help="checked writes and reads per second")
    parser.add_argument("--keys", type=int, default=100000)
    parser.add_argument("--every", default="10ms")
    parser.add_argument("--sample", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=120)
    parser.add_argument("--stretch", type=float, default=300,
                        help="duration of the first and last part that are compared, in seconds")
    parser.add_argument("--nice", type=int, default=0, help="niceness of undying, redis and the load, on a busy machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, help="port of redis [default: the first free port from 7981]")
    parser.add_argument("--short", action="store_true",
                        help="a run of a few seconds: rates and pauses are reported, but not checked")
    parser.add_argument("--plot", metavar="CSV",
                        help="only report the slopes of the rows of an earlier run, and draw the rows")
    options = parser.parse_args()
    if options.plot:
        leaks(read_rows(options.plot), Spoken(), options.warm_up)
        return draw(options.plot)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.port = options.port or free_port()
    findings, rows = Findings("soak_redis", options), []
    version = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout.split()
    findings.say("seed %d, redis %s" % (options.seed, version[2] if len(version) > 2 else "?"))
    options.raw = open(findings.base + ".csv", "w", newline="")
    for line in findings.head:
        options.raw.write("# %s\n" % line)
    options.writer = csv.DictWriter(options.raw, COLUMNS, lineterminator="\n")
    options.writer.writeheader()

    def work(scratch):
        try:
            soak(options, scratch, rows, findings)
        finally:
            options.raw.write("# load average at the end: %.1f %.1f %.1f\n" % os.getloadavg())
            options.raw.close()
            if rows and not options.short:
                leaks(rows, findings, options.warm_up)
        draw(findings.base + ".csv")
        return findings.held
    findings.run(work)


if __name__ == "__main__":
    main()
