#!/usr/bin/env python3
"""How much shorter is the stop for a continuous checkpoint than the stop of a tool that stops, copies and writes?

The subject (the measured program) reads the clock in a loop, and has 1 GiB and 10,000 written pages per second by
default. A stall is the longest gap between two readings, in a period or during a single checkpoint. One run of the
subject is measured in these ways:

  stop     programs/stopcopy.c: stops the subject, writes all its memory to a file, makes the file durable, resumes
  once     `undying checkpoint`, which copies during the pause and writes afterwards
  criu     `criu dump --leave-running` (with the option --criu): stops the subject, and writes into the page cache. The
           image is not durable.
  10, 100  continuous checkpoints at these rates; p99 of the stalls, with one period for each checkpoint
  none     no checkpoint; p99 of the stalls in periods of 10 ms, which shows the noise

The subject has measured `stall_ms`. `ratio` is the `stall_ms` of `stop` in the same round, divided by this `stall_ms`.
`ratio_p50` is the same with the median instead of p99.
"""
import os
import shutil
import subprocess
import sys
import time

from lib.harness import (Rows, Subject, arguments, build, main, middle, on, plotter, processors, quantile, read_rows,
                         save, with_checkpoints, without)

QUESTION = "continuous_ratio"
RATES = [10, 100]
COLUMNS = ["mib", "rate", "round", "way", "stall_ms", "stall_ms_p50", "own_pause_ms", "took_ms", "checkpoints", "ratio", "ratio_p50"]
GOAL = 200


def longest(record, begin, end):
    return max((length for began, length in record if begin <= began < end), default=0) / 1e6


def each_period(record, window):
    periods = [0] * max(1, window.done.count or round(window.seconds * window.hz))
    for began, length in record:
        index = int((began - window.begin) / 1e9 / window.seconds * len(periods))
        if window.begin <= began and 0 <= index < len(periods):
            periods[index] = max(periods[index], length)
    return [length / 1e6 for length in periods]


class Once:
    """The ways that take one checkpoint with one command."""

    def __init__(self, options, scratch, pid, cpus):
        self.options, self.scratch, self.pid, self.cpus = options, scratch, pid, cpus
        self.image = os.path.join(options.place or scratch, "image-%d" % os.getpid())

    def command(self, way):
        if way == "stop":
            return [build("stopcopy", self.scratch), "pid=%d" % self.pid, "file=" + self.image]
        if way == "once":
            return [self.options.undying, "checkpoint", str(self.pid), "--image", self.image]
        os.mkdir(self.image)
        return [self.options.criu, "dump", "-t", str(self.pid), "-D", self.image, "--shell-job", "--leave-running"]

    def take(self, way):
        command, begin = self.command(way), time.monotonic_ns()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
                              start_new_session=True, preexec_fn=on(self.cpus, self.options.nice))
        end = time.monotonic_ns()
        if os.path.isdir(self.image):
            shutil.rmtree(self.image)
        elif os.path.exists(self.image):
            os.remove(self.image)
        if done.returncode != 0:
            raise RuntimeError("%s ended with status %d: %s" % (command, done.returncode, done.stdout + done.stderr))
        return begin, end


def measure(options, rows, scratch, ways):
    subject_cpus, driver_cpus, _ = processors(options)
    subject = Subject(scratch, "gapclock", {"mib": options.mib, "rate": options.rate}, subject_cpus, options.nice)
    once, windows = Once(options, scratch, subject.pid, driver_cpus), []
    try:
        for turn in range(options.rounds):
            windows.append((turn, "none", without(100, options.seconds)))
            for way in ways:
                windows.append((turn, way, once.take(way)))
                time.sleep(0.5)
            for hz in RATES:
                windows.append((turn, str(hz), with_checkpoints(options, subject.pid, hz, options.seconds, scratch,
                                                                driver_cpus)))
        record = subject.stop()
    except BaseException:
        subject.kill()
        raise
    stops = {turn: longest(record, *window) for turn, way, window in windows if way == "stop"}
    for turn, way, window in windows:
        one = dict(mib=options.mib, rate=options.rate, round=turn, way=way)
        if isinstance(window, tuple):
            one.update(stall_ms=longest(record, *window), took_ms=(window[1] - window[0]) / 1e6, checkpoints=1)
        else:
            seen = each_period(record, window)
            one.update(stall_ms=quantile(seen, 0.99), stall_ms_p50=quantile(seen, 0.5), checkpoints=window.done.count,
                       own_pause_ms=window.done.pause_us(0.99) / 1000)
        by = lambda name: stops[turn] / one[name] if one.get(name) else ""
        rows.add(ratio=by("stall_ms"), ratio_p50=by("stall_ms_p50"), **one)
    for way in ["none", *ways, *map(str, RATES)]:
        of = lambda name: [float(one[name]) for one in rows.rows if one["way"] == way and one.get(name, "") != ""]
        print("%-5s stall ms %9.3f (%.3f to %.3f)  p50 %8.3f  stop-copy-write takes %8.1f times as long, p50 %8.1f" % (
            way, middle(of("stall_ms")), min(of("stall_ms")), max(of("stall_ms")), middle(of("stall_ms_p50")),
            middle(of("ratio")), middle(of("ratio_p50"))), flush=True)


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    labels = {"stop": "stop, copy, write", "criu": "CRIU", "once": "undying checkpoint", "10": "10 Hz, p99",
              "100": "100 Hz, p99", "none": "no checkpoint, p99"}
    ways = [way for way in labels if any(one["way"] == way for one in rows)]
    figure, pane = plot.subplots(figsize=(7, 0.6 + 0.45 * len(ways)), layout="constrained")
    for spot, way in enumerate(reversed(ways)):
        found = [float(one["stall_ms"]) for one in rows if one["way"] == way]
        pane.barh(spot, middle(found), 0.6, color={"none": "0.7", "10": "#4c78a8", "100": "#4c78a8"}.get(way, "#f58518"),
                  zorder=2)
        pane.plot([min(found), max(found)], [spot, spot], color="black", lw=1, zorder=3)
        pane.text(max(found) * 1.15, spot, "%.3g ms" % middle(found), va="center", fontsize=8)
    stop = middle([float(one["stall_ms"]) for one in rows if one["way"] == "stop"])
    pane.axvline(stop / GOAL, color="crimson", lw=0.8, label="1/%d of stop, copy, write" % GOAL)
    pane.set_yticks(range(len(ways)), [labels[way] for way in reversed(ways)])
    pane.set(xscale="log", xlabel="stall of the subject, ms (%s MiB, %s pages/s)" % (
        rows[0]["mib"], rows[0]["rate"]))
    pane.legend(fontsize=8, loc="lower right")
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="length of a window in seconds")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rate", type=int, default=10000)
    parser.add_argument("--criu", help="the program CRIU, to measure it too")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.seconds = options.seconds or (5 if options.quick else 20)
    rows = Rows(options, QUESTION, COLUMNS)
    try:
        main(lambda scratch: measure(options, rows, scratch, ["stop", "once"] + ["criu"] * bool(options.criu)))
    except RuntimeError as failure:
        sys.exit(str(failure))
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
