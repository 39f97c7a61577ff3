#!/usr/bin/env python3
"""What is the effect of continuous checkpoints on the clients of a redis server, compared with BGSAVE and with none?

The server has --keys keys of 100 bytes. The load generator programs/redis_load.c sends mixes of SET, GET and LPUSH over
TCP. The load is 15, 50 or 100 % of the peak rate of the mix, which is measured without checkpoints. At 100 %, each
connection sends its next request after each reply. The response time of a request begins when the request is due.

Before and after each window with checkpoints or with BGSAVE, there is a window without both. BGSAVE is started every
second, but not before the previous BGSAVE has ended.

Each row is one window. `kept` is the throughput, and `p50_ratio` and `p99_ratio` are response times. All three are
divided by the mean of the windows before and after. A row of the mode `none` is a window without checkpoints, compared
with the previous window without checkpoints. The rows of this mode show the noise.

The load generator represents clients on other machines, which do not wait for a processor of this machine. Therefore,
it has real-time priority. If there are fewer than three processors, it shares one with undying or the child of BGSAVE.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import threading

from lib.harness import (Rows, arguments, build, main, middle, on, plotter, processors, read_rows, save,
                         wait_for, with_checkpoints)

QUESTION = "continuous_redis"
MIXES = {"set": {"set": 1}, "get": {"get": 9, "set": 1}, "lpush": {"push": 1}}
LOADS = [0.15, 0.5, 1.0]
MODES = [1, 10, 100, "bgsave"]
# Real-time priority of the load generator. undying has the real-time priority 1 during a pause.
GENERATOR_PRIORITY = 2
TIMES = ["p50_us", "p99_us", "p999_us", "max_us"]
COLUMNS = ["mix", "load", "mode", "round", "offered", "per_second", *TIMES, "kept", "p50_ratio", "p99_ratio",
           "checkpoints", "achieved_hz", "pause_us_p50", "pause_us_p99", "pages_each", "written", "driver_cpu",
           "peak_anon_mib"]


class Server:
    """redis-server with keys k0 … and values of 100 bytes."""

    def __init__(self, options, scratch, cpus):
        self.port, work = options.port, os.path.join(scratch, "redis")
        shutil.rmtree(work, ignore_errors=True)
        os.mkdir(work)
        with open(os.path.join(work, "log"), "w") as log:
            self.process = subprocess.Popen(["redis-server", "--port", str(self.port), "--save", "", "--dir", work],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                            preexec_fn=on(cpus, options.nice))
        self.pid = self.process.pid
        wait_for(self.answers, "redis")
        self.fill(options.keys)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def answers(self):
        try:
            return self.ask("PING") == "+PONG"
        except OSError:
            return False

    def ask(self, line):
        with self.connect() as connection:
            connection.sendall(line.encode() + b"\r\n")
            return connection.makefile().readline().strip()

    def fill(self, keys):
        with self.connect() as connection:
            answers = connection.makefile("rb")
            for first in range(0, keys, 10000):
                rows = ["SET k%d %0100d\r\n" % (key, key) for key in range(first, min(first + 10000, keys))]
                connection.sendall("".join(rows).encode())
                for _ in rows:
                    if not answers.readline().startswith(b"+OK"):
                        raise RuntimeError("redis has rejected a SET")

    def saves(self):
        """Returns the number of successful BGSAVEs, and whether a BGSAVE is running."""
        with self.connect() as connection:
            connection.sendall(b"INFO persistence\r\n")
            text = b""
            while b"rdb_last_cow_size" not in text:
                text += connection.recv(65536)
        found = dict(line.split(":") for line in text.decode().split("\r\n") if ":" in line)
        return int(found["rdb_saves"]), found["rdb_bgsave_in_progress"] == "1"

    def stop(self):
        self.process.kill()
        self.process.wait()


class Load:
    """A run of the load generator."""

    def __init__(self, options, scratch, cpus, mix, rate, seconds, seed):
        words = {"port": options.port, "seconds": seconds, "rate": int(rate), "keys": options.keys, "seed": seed,
                 "connections": options.connections, **MIXES[mix]}
        self.offered = rate
        self.process = subprocess.Popen([build("redis_load", scratch), *("%s=%s" % word for word in words.items())],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        start_new_session=True, preexec_fn=self.prepare(on(cpus, options.nice)))

    @staticmethod
    def prepare(placed):
        def prepare():
            placed()
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(GENERATOR_PRIORITY))
        return prepare

    def result(self):
        out, errors = self.process.communicate(timeout=300)
        if self.process.returncode != 0:
            raise RuntimeError("the load ended with %d: %s" % (self.process.returncode, errors.decode() or out.decode()))
        return json.loads(out)


class Saver(threading.Thread):
    """Starts a BGSAVE every second, unless the previous BGSAVE is still running."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.is_over, self.started = server, threading.Event(), 0

    def run(self):
        while not self.is_over.wait(1.0):
            if not self.server.saves()[1]:
                self.server.ask("BGSAVE")
                self.started += 1


class Case:
    """The windows of one mix at one load."""

    def __init__(self, options, scratch, server, mix, share, peak, cpus):
        self.options, self.scratch, self.server, self.mix, self.share = options, scratch, server, mix, share
        self.rate = 0 if share >= 1 else peak * share
        self.driver_cpus, self.load_cpus = cpus
        self.seed = 0

    def load(self, seconds):
        self.seed += 1
        return Load(self.options, self.scratch, self.load_cpus, self.mix, self.rate, seconds, self.seed)

    def without(self):
        return self.load(self.options.seconds).result(), {}

    def bgsave(self):
        saver, (before, _) = Saver(self.server), self.server.saves()
        saver.start()
        try:
            found = self.load(self.options.seconds).result()
        finally:
            saver.is_over.set()
            saver.join()
        wait_for(lambda: not self.server.saves()[1], "the end of BGSAVE")
        count = self.server.saves()[0] - before
        return found, {"checkpoints": count, "achieved_hz": count / self.options.seconds}

    def checkpoints(self, hz):
        """Measures a window with checkpoints. The load begins after the first checkpoint, which copies all pages."""
        loads = []
        window = with_checkpoints(self.options, self.server.pid, hz, self.options.seconds, self.scratch,
                                  self.driver_cpus, begin=lambda: loads.append(self.load(self.options.seconds)))
        done = window.done
        return loads[0].result(), {
            "checkpoints": done.count, "achieved_hz": window.achieved_hz, "pause_us_p50": done.pause_us(0.5),
            "pause_us_p99": done.pause_us(0.99), "written": window.written, "driver_cpu": window.driver_cpu,
            "pages_each": done.pages() / max(1, done.count), "peak_anon_mib": window.peak["anon_mib"]}

    def measure(self, rows, modes):
        first = len(rows.rows)
        before = self.without()[0]
        for turn in range(self.options.rounds):
            for mode in modes:
                found, more = self.bgsave() if mode == "bgsave" else self.checkpoints(float(mode))
                after = self.without()[0]
                self.add(rows, mode, turn, found, [before, after], more)
                self.add(rows, "none", turn, after, [before], {})
                before = after
        self.tell(rows.rows[first:], modes)

    def add(self, rows, mode, turn, found, beside, more):
        mean = lambda name: sum(one[name] for one in beside) / len(beside)
        rows.add(mix=self.mix, load=self.share, mode=mode, round=turn, offered=float(self.rate),
                 per_second=found["per_second"], kept=found["per_second"] / mean("per_second"),
                 p50_ratio=found["p50_us"] / mean("p50_us"), p99_ratio=found["p99_us"] / mean("p99_us"),
                 **{name: found[name] for name in TIMES}, **more)

    def tell(self, rows, modes):
        for mode in ["none", *modes]:
            of = lambda name: middle([float(one[name]) for one in rows if one["mode"] == mode and one.get(name)])
            print("%-5s %3d %% %6s: %7.0f requests/s, kept %.3f, p50 %6.0f us (x %.2f), p99 %7.0f us (x %.2f), "
                  "achieved %6.2f Hz, pause p50 %5.0f p99 %5.0f us" % (
                      self.mix, 100 * self.share, mode, *map(of, (
                          "per_second", "kept", "p50_us", "p50_ratio", "p99_us", "p99_ratio", "achieved_hz",
                          "pause_us_p50", "pause_us_p99"))), flush=True)


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    mixes = [mix for mix in MIXES if any(one["mix"] == mix for one in rows)]
    modes = list(dict.fromkeys(one["mode"] for one in rows))
    modes.sort(key=lambda mode: (mode != "none", mode == "bgsave", float(mode) if mode[0].isdigit() else 0))
    figure, panes = plot.subplots(2, len(mixes), figsize=(3.6 * len(mixes), 6), squeeze=False, layout="constrained",
                                  sharey="row")
    colours = dict(zip([mode for mode in modes if mode[0].isdigit()], ["#9ecae1", "#4c78a8", "#2a4b73"]),
                   none="0.7", bgsave="#f58518")
    for column, mix in enumerate(mixes):
        loads = sorted({float(one["load"]) for one in rows if one["mix"] == mix})
        for index, mode in enumerate(modes):
            of = lambda load, name: [float(one[name]) for one in rows
                                     if one["mix"] == mix and one["mode"] == mode and float(one["load"]) == load]
            spots = [spot + (index - (len(modes) - 1) / 2) * 0.8 / len(modes) for spot in range(len(loads))]
            label = {"none": "none", "bgsave": "BGSAVE each second"}.get(mode, mode + " Hz")
            for pane, name in ((panes[0, column], "kept"), (panes[1, column], "p99_us")):
                found = [of(load, name) for load in loads]
                height = [middle(values) for values in found]
                pane.bar(spots, height, 0.75 / len(modes), color=colours.get(mode, "black"), label=label, zorder=2)
                for spot, values in zip(spots, found):
                    if values:
                        pane.plot([spot, spot], [min(values), max(values)], color="black", lw=0.8, zorder=3)
        panes[0, column].set_title(mix)
        panes[1, column].set_yscale("log")
        for pane in panes[:, column]:
            pane.set_xticks(range(len(loads)), ["%d %%" % (100 * load) for load in loads])
        panes[1, column].set_xlabel("load, of the peak")
    panes[0, 0].set_ylabel("throughput, relative to none")
    panes[1, 0].set_ylabel("p99 of response times, µs")
    figure.legend(*panes[0, 0].get_legend_handles_labels(), ncols=2 * len(mixes), loc="outside lower center", fontsize=8)
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="length of a window in seconds")
    parser.add_argument("--keys", type=int, default=1000000)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--port", type=int, default=7941)
    parser.add_argument("--mix", help=",".join(MIXES))
    parser.add_argument("--load", help=",".join("%g" % load for load in LOADS))
    parser.add_argument("--mode", help="checkpoints per second, and bgsave; separated by commas")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    if not shutil.which("redis-server"):
        sys.exit("redis-server is missing; install the package redis-server")
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (4 if options.quick else 15)
    mixes = (options.mix or ("set,get" if options.quick else ",".join(MIXES))).split(",")
    loads = [float(one) for one in options.load.split(",")] if options.load else ([0.5, 1.0] if options.quick else LOADS)
    modes = options.mode.split(",") if options.mode else ([10, 100, "bgsave"] if options.quick else MODES)
    modes = [str(mode) for mode in modes]
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        subject, driver, generator = processors(options, load=True)
        for mix in mixes:
            server = Server(options, scratch, subject)
            try:
                peaks = [Load(options, scratch, generator, mix, 0, options.seconds, turn).result()["per_second"]
                         for turn in range(3)]
                for share in loads:
                    Case(options, scratch, server, mix, share, middle(peaks), (driver, generator)).measure(rows, modes)
            except RuntimeError as failure:
                rows.file.write("# failed: %s: %s\n" % (mix, " ".join(str(failure).split())))
                print("failed: %s: %s" % (mix, failure), file=sys.stderr, flush=True)
            finally:
                server.stop()
    main(work)
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
