"""What the benches share: subjects, drivers that checkpoint them, windows, rows, plots.

A subject lives through windows without and with checkpoints in turn (A B A B …), so that the same process on the same
processors is compared with itself. A driver is attached to a running subject and taken off again; `engine` drives the
library by itself (crates/engine/examples/bench_epochs.rs), `run` is `undying run --adopt`, as a user has it.
"""
import argparse
import collections
import csv
import datetime
import json
import math
import os
import platform
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = os.path.join(HERE, "programs")
TARGET = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(HERE, "..", "target")),
                      "x86_64-unknown-linux-gnu")
PATIENCE_S = 180
MIB = 1 << 20


# Processors ---------------------------------------------------------------------------------------------------------

def processors(options, threads=1, load=False):
    """Sets for the subject, the driver and a load generator. By default each may use all processors, as a user has it;
    with --pin each has its own, and where there are too few, the last one is shared."""
    there = sorted(os.sched_getaffinity(0))
    if not options.pin:
        return set(there), set(there), set(there)
    subject = there[:threads]
    rest = there[threads:] or there[-1:]
    driver, others = rest[:1], rest[1:] or rest[:1]
    return set(subject), set(driver), set(others if load else driver)


def on(cpus, niceness=0):
    """For `preexec_fn` of a child with a session of its own: runs it on these processors."""
    def prepare():
        os.sched_setaffinity(0, cpus)
        if niceness:
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            # Each session is scheduled as one, whatever the niceness of those in it.
            with open("/proc/self/autogroup", "w") as group:
                group.write(str(niceness))
    return prepare


# Commands and processes ---------------------------------------------------------------------------------------------

def command(words, patience_s=PATIENCE_S):
    """Runs one; the wall time and the processor time of it and of what it reaped, in ms, and its output."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience_s)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError("%s ended with %d:\n%s%s" % (words, done.returncode, done.stdout, done.stderr))
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, used * 1000, done.stdout


def gone(pid):
    """Reaps a process when it is our child; an orphan is reaped by whoever adopted it."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    return not os.path.exists("/proc/%d" % pid)


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    wait_for(lambda: gone(pid), "the end of pid %d" % pid)


def files_under(folder):
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]


def into_page_cache(folder):
    for path in files_under(folder):
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass


# Subjects -----------------------------------------------------------------------------------------------------------

def build(name, into):
    binary = os.path.join(into, name)
    if not os.path.exists(binary):
        source = os.path.join(PROGRAMS, name + ".c")
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-o", binary, source, "-lpthread", "-lm"],
                       check=True)
    return binary


class Subject:
    """One of programs/, running. `stop` ends it, sees that its own checks passed, and returns its record."""

    def __init__(self, scratch, name, options, cpus, niceness=0):
        self.name, self.out = name, os.path.join(scratch, "record-%d" % time.monotonic_ns())
        words = ["%s=%s" % item for item in options.items()]
        # Files: a pipe to the outside would be an obstacle.
        self.said = self.out + ".said"
        with open(self.said, "w") as said:
            self.process = subprocess.Popen([build(name, scratch), *words, "out=" + self.out], stdin=subprocess.DEVNULL,
                                            stdout=said, stderr=said, start_new_session=True,
                                            preexec_fn=on(cpus, niceness))
        self.pid = self.process.pid
        wait_for(lambda: self.process.poll() is not None or self.words(), name)
        if self.words() != "ready\n":
            raise RuntimeError("%s: %s" % (name, self.words()))

    def words(self):
        with open(self.said) as said:
            return said.read()

    def stop(self):
        self.process.terminate()
        try:
            code = self.process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError("%s does not end" % self.name) from None
        if code != 0:
            raise RuntimeError("%s ended with %d: %s" % (self.name, code, self.words()))
        with open(self.out, "rb") as file:
            record = list(struct.iter_unpack("<QQ", file.read()))
        os.remove(self.out)
        return record

    def kill(self):
        self.process.kill()
        self.process.wait()


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("gave up waiting for " + what)
        time.sleep(0.002)


def redis_answers(port):
    """Whether a redis server does, now."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100).startswith(b"+PONG")
    except OSError:
        return False


# Drivers ------------------------------------------------------------------------------------------------------------

# Of the phases that a driver tells, those that results have a column of.
PHASES = ["stop", "scan", "copy"]

Taken = collections.namedtuple("Taken", "at figures")
Taken.__doc__ = "One checkpoint that the driver told of: when (CLOCK_MONOTONIC, ns), and its figures."


class Done:
    """What was done in a window. Where single checkpoints are not known, `figures` of them are NaN."""

    def __init__(self, taken=(), count=None, pauses=None, behind=0, failed=0):
        self.taken, self.known = list(taken), pauses
        # Left out because the log had enough to write; given up, so that the next one starts from nothing.
        self.behind, self.failed = behind, failed
        self.count = len(self.taken) if count is None else count

    def each(self, name):
        return [one.figures[name] for one in self.taken]

    def figure(self, name):
        """The median of a figure, ns or pages as the driver tells it."""
        return middle(self.each(name))

    def pause_us(self, share):
        if self.known:
            return float(self.known["p50" if share <= 0.5 else "p99" if share <= 0.99 else "max"])
        return quantile(self.each("pause"), share) / 1000

    def stood_s(self):
        """For how long all pauses together lasted; estimated from the median where single ones are not known."""
        return self.known["p50"] * self.count / 1e6 if self.known else sum(self.each("pause")) / 1e9

    def pages(self):
        return sum(one.figures["precopied"] + one.figures["residual"] for one in self.taken) if self.taken else math.nan


class Driver:
    """Checkpoints a running process until `detach`. `counters` may be asked at any time."""

    def __init__(self, command, store, cpus, niceness, stdin=subprocess.DEVNULL):
        self.store = store
        self.said = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=self.said, text=True,
                                        preexec_fn=on(cpus, niceness), start_new_session=True)
        self.peak = {"rss_mib": 0.0, "anon_mib": 0.0}

    def failure(self):
        self.said.seek(0)
        return "the driver ended with %s: %s" % (self.process.returncode, self.said.read().decode(errors="replace"))

    def counters(self):
        """Bytes written to the device so far, processor time used, and memory."""
        pid = self.process.pid
        try:
            with open("/proc/%d/io" % pid) as file:
                written = {line.split(":")[0]: int(line.split()[1]) for line in file}["write_bytes"]
            with open("/proc/%d/status" % pid) as file:
                status = dict(line.split(":", 1) for line in file)
            with open("/proc/%d/stat" % pid) as file:
                fields = file.read().rsplit(")", 1)[1].split()
            self.peak["rss_mib"] = int(status["VmHWM"].split()[0]) / 1024
            self.peak["anon_mib"] = max(self.peak["anon_mib"], int(status["RssAnon"].split()[0]) / 1024)
        except (FileNotFoundError, ProcessLookupError, KeyError):
            self.process.wait(PATIENCE_S)
            raise RuntimeError(self.failure()) from None
        return {"written": written, "cpu_s": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")}

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None:
                raise RuntimeError(self.failure())
            if time.monotonic() > end:
                self.process.kill()
                raise RuntimeError("gave up waiting for %s" % what)
            time.sleep(0.01)


class Engine(Driver):
    """The library by itself. Each checkpoint is known with all its figures."""

    name = "engine"

    def __init__(self, options, pid, hz, store, cpus, tracker="auto"):
        self.taken, self.behind, self.failed = [], 0, 0
        # From the wall clock that the driver stamps with to the subject's.
        self.offset = time.monotonic_ns() - time.time_ns()
        command = [options.engine, str(pid), store, "job", "%g" % hz, tracker, options.prefer]
        super().__init__(command, store, cpus, options.nice, stdin=subprocess.PIPE)
        threading.Thread(target=self.listen, daemon=True).start()
        if hz:
            self.until(lambda: len(self.taken) >= 2, "the first checkpoints")

    def listen(self):
        for line in self.process.stdout:
            one = json.loads(line)
            if "at" not in one:
                self.behind += "behind" in one
                if "failed" in one:
                    self.failed += 1
                    print("given up: " + one["failed"], file=sys.stderr, flush=True)
                continue
            self.taken.append(Taken(one["at"] + self.offset, one))

    def take_one(self):
        """With a rate of 0: takes one checkpoint and waits until it is durable."""
        count = len(self.taken)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.until(lambda: len(self.taken) > count, "a checkpoint")
        return self.taken[-1].figures

    def detach(self):
        self.process.stdin.close()
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError("the driver does not end") from None
        if code != 0:
            raise RuntimeError(self.failure())
        shutil.rmtree(self.store, ignore_errors=True)

    def look(self):
        return {"behind": self.behind, "failed": self.failed}

    def done(self, begin, end):
        """Between two instants, each an answer of `look` with its time."""
        return Done([one for one in self.taken if begin["at"] <= one.at < end["at"]],
                    behind=end["behind"] - begin["behind"], failed=end["failed"] - begin["failed"])


class Run(Driver):
    """`undying run --adopt`, as a user has it. Checkpoints are known by what `status` says of the latest."""

    name = "run"

    def __init__(self, options, pid, hz, store, cpus, tracker="auto"):
        if not hz:
            raise RuntimeError("`run` takes checkpoints at a rate only")
        self.command = [options.undying, "--store", store]
        every = "%dms" % round(1000 / hz)
        super().__init__([*self.command, "run", "--name", "job", "--adopt", str(pid), "--restart", "never", "--every",
                          every, "--tracker", tracker, "--prefer", options.prefer], store, cpus, options.nice)
        self.subject = pid
        self.until(lambda: (self.status() or {}).get("checkpoints", 0) >= 2, "the first checkpoints")

    def status(self):
        said = subprocess.run([*self.command, "status", "job", "--json"], capture_output=True, text=True)
        return json.loads(said.stdout)[0] if said.returncode == 0 else None

    def look(self):
        status = self.status()
        if not status or status["state"] != "running":
            raise RuntimeError("not guarded any more: %s" % status)
        return status

    def done(self, begin, end):
        refused = lambda status: sum(one["count"] for one in status["refusals"])
        return Done(count=end["checkpoints"] - begin["checkpoints"], pauses=end["pause_us"],
                    failed=refused(end) - refused(begin))

    def detach(self):
        # To end it otherwise would end its subject.
        self.process.kill()
        self.process.wait()
        wait_for(lambda: runs(self.subject), "the subject to go on")
        shutil.rmtree(self.store, ignore_errors=True)


def runs(pid):
    with open("/proc/%d/stat" % pid) as file:
        state = file.read().rsplit(")", 1)[1].split()[0]
    with open("/proc/%d/status" % pid) as file:
        tracer = next(line for line in file if line.startswith("TracerPid")).split()[1]
    if state in "ZX":
        raise RuntimeError("the subject has ended")
    return state not in "tT" and tracer == "0"


DRIVERS = {"engine": Engine, "run": Run}


def attach(options, pid, hz, scratch, cpus, **more):
    """THE place where checkpoints begin: all benches come through here."""
    store = tempfile.mkdtemp(prefix="store-", dir=options.place or scratch)
    return DRIVERS[options.driver](options, pid, hz, store, cpus, **more)


# Windows ------------------------------------------------------------------------------------------------------------

class Window:
    """A stretch of time with or without checkpoints: when, and what the driver did in it."""

    def __init__(self, hz, begin, end, done=None, before=None, after=None, peak=None):
        self.hz, self.begin, self.end, self.done = hz, begin, end, done or Done()
        self.has_checkpoints = done is not None
        self.seconds = (end - begin) / 1e9
        self.written = after["written"] - before["written"] if before else 0
        self.driver_cpu = (after["cpu_s"] - before["cpu_s"]) / self.seconds if before else 0.0
        self.peak = peak or {"rss_mib": 0.0, "anon_mib": 0.0}

    @property
    def achieved_hz(self):
        return self.done.count / self.seconds


def without(hz, seconds):
    begin = time.monotonic_ns()
    time.sleep(seconds)
    return Window(hz, begin, time.monotonic_ns())


def with_checkpoints(options, pid, hz, seconds, scratch, cpus, settle=0.5, begin=lambda: None, **more):
    """`begin` is called when the window begins."""
    driver = attach(options, pid, hz, scratch, cpus, **more)
    try:
        time.sleep(settle)
        begin()
        first = dict(driver.look(), at=time.monotonic_ns())
        before = driver.counters()
        while (left := seconds - (time.monotonic_ns() - first["at"]) / 1e9) > 0:
            time.sleep(min(0.25, left))
            driver.counters()
        after = driver.counters()
        last = dict(driver.look(), at=time.monotonic_ns())
    except BaseException:
        driver.process.kill()
        driver.process.wait()
        raise
    # What was taken last is told with the next one.
    time.sleep(min(1.0, 2 / hz))
    driver.detach()
    return Window(hz, first["at"], last["at"], driver.done(first, last), before, after, dict(driver.peak))


# Figures ------------------------------------------------------------------------------------------------------------

def quantile(values, share):
    """The nearest rank; empty gives NaN."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def middle(values):
    return statistics.median(values) if values else math.nan


def spread(values):
    """Median, least and most, for people."""
    return "%8.3f (%.3f to %.3f)" % (middle(values), min(values), max(values)) if values else "       -"


# Options, rows, plots -----------------------------------------------------------------------------------------------

def results(document):
    """What every question is told: the program, and where its rows go."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--undying", type=os.path.abspath, default=newest("undying"), help="the program [newest in target/]")
    parser.add_argument("--out", help="folder for rows and plots [target/benches]", default=os.path.join(HERE, "..", "target", "benches"))
    parser.add_argument("--tag", default=datetime.date.today().isoformat(), help="end of the names of the results")
    return parser


def arguments(document, **defaults):
    """The same of questions about continuous checkpoints."""
    parser = results(document)
    parser.add_argument("--quick", action="store_true", help="some minutes instead of an hour or so")
    parser.add_argument("--driver", choices=sorted(DRIVERS), default=defaults.get("driver", "engine"))
    parser.add_argument("--engine", default=newest("examples/bench_epochs"), help="the driver `engine` [newest in target/]")
    parser.add_argument("--nice", type=int, default=0, help="niceness of subject and driver, on a busy machine")
    parser.add_argument("--pin", action="store_true", help="processors of their own for subject, driver and load; "
                        "ask without it first")
    parser.add_argument("--prefer", choices=("pause", "throughput"), default="pause", help="as of `undying run`")
    parser.add_argument("--place", help="where stores are made [the temporary folder]")
    parser.add_argument("--plot", metavar="CSV", help="only draw the plot of earlier rows again")
    return parser


def newest(name):
    found = [os.path.join(TARGET, profile, name) for profile in ("release", "debug")]
    found = [path for path in found if os.path.exists(path)]
    return os.path.realpath(max(found, key=os.path.getmtime)) if found else os.path.join(TARGET, "release", name)


class Rows:
    """Raw rows: written as they come, so that a run that is broken off leaves what it had."""

    def __init__(self, options, question, columns):
        os.makedirs(options.out, exist_ok=True)
        self.path = os.path.join(options.out, "%s-%s.csv" % (question, options.tag))
        self.rows, self.columns = [], columns
        self.file = open(self.path, "w", newline="")
        for line in conditions(options):
            self.file.write("# %s\n" % line)
        self.writer = csv.DictWriter(self.file, columns, lineterminator="\n")
        self.writer.writeheader()

    def add(self, **row):
        text = {name: "%.6g" % cell if isinstance(cell, float) else cell for name, cell in row.items()}
        self.rows.append({name: str(cell) for name, cell in text.items()})
        self.writer.writerow(text)
        self.file.flush()

    def close(self):
        self.file.write("# load average at the end: %.1f %.1f %.1f\n" % os.getloadavg())
        self.file.close()
        print("raw rows: " + os.path.relpath(self.path))


def conditions(options):
    driver = getattr(options, "driver", None)
    binary = options.engine if driver == "engine" else options.undying
    yield "command: %s %s" % (os.path.basename(sys.argv[0]), " ".join(sys.argv[1:]))
    yield "kernel %s, %d processors, load average at the beginning: %.1f %.1f %.1f" % (
        platform.release(), os.cpu_count(), *os.getloadavg())
    if hasattr(options, "pin"):
        yield "placement: " + ("subject, driver and load on processors of their own" if options.pin else "default")
    profiles = [name for name in ("release", "debug") if name in binary.split(os.sep)]
    yield "%s%s build" % ("driver: %s, " % driver if driver else "", profiles[-1] if profiles else "another")
    try:
        described = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty", "--exclude", "*"],
                                   capture_output=True, text=True, check=True).stdout.strip()
        yield "commit: " + described
    except (OSError, subprocess.CalledProcessError):
        pass


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def plotter():
    """matplotlib, or None with a word about it: rows are kept either way."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is missing (benches/requirements.txt); --plot CSV draws it later")
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plot
    plot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                          "grid.alpha": 0.25, "legend.frameon": False, "figure.dpi": 130, "svg.hashsalt": "undying"})
    return plot


def save(plot, figure, path):
    figure.savefig(path)
    plot.close(figure)
    print("plot: " + os.path.relpath(path))


def main(work):
    """Runs a bench in a scratch folder that is removed whatever happens."""
    scratch = tempfile.mkdtemp(prefix="undying-bench-")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for descriptor in range(200, 256):
        # What the shell has left open would be an obstacle of the subject.
        try:
            os.close(descriptor)
        except OSError:
            pass
    try:
        work(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
