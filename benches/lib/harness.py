"""Code that the benches share: subjects, drivers, windows, rows, plots.

A subject is the measured program. A window is a stretch of time in which it is measured. Windows without and with
checkpoints alternate (A B A B …), so that one process is compared with itself on the same processors. A driver is a
program that takes checkpoints of a running subject until it is detached. The driver `engine` calls the library directly
(crates/engine/examples/bench_epochs.rs). The driver `run` is `undying run --adopt`, as in normal use.
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
    """Returns the sets of processors for the subject, the driver and a load generator.

    By default, each of them may use all processors, as in normal use. With --pin, the subject gets the first `threads`
    processors, the driver the next processor, and the load generator the remaining processors. If there are too few,
    the last processor is shared. Without `load`, the third set equals the set of the driver.
    """
    there = sorted(os.sched_getaffinity(0))
    if not options.pin:
        return set(there), set(there), set(there)
    subject = there[:threads]
    rest = there[threads:] or there[-1:]
    driver, others = rest[:1], rest[1:] or rest[:1]
    return set(subject), set(driver), set(others if load else driver)


def on(cpus, niceness=0):
    """Returns a function for `preexec_fn`, which binds the child to `cpus` and sets its niceness.

    The child must have its own session.
    """
    def prepare():
        os.sched_setaffinity(0, cpus)
        if niceness:
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            # The scheduler treats each session as one group (sched(7), autogroup). The niceness of a process counts
            # only within its group, so the group gets the same niceness.
            with open("/proc/self/autogroup", "w") as group:
                group.write(str(niceness))
    return prepare


# Commands and processes ---------------------------------------------------------------------------------------------

def command(words, patience_s=PATIENCE_S):
    """Runs a command. Returns its wall time and its processor time in ms, and its output.

    The processor time includes descendants that were reaped.
    """
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience_s)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError("%s ended with status %d:\n%s%s" % (words, done.returncode, done.stdout, done.stderr))
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, used * 1000, done.stdout


def gone(pid):
    """Reports whether a process no longer exists. Reaps the process first if it is a child of this script."""
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
    """A running program of programs/. `stop` ends it, and returns its record, or raises an error if its checks failed.

    The record is the list of pairs of numbers that the program writes to its file `out=`.
    """

    def __init__(self, scratch, name, options, cpus, niceness=0):
        self.name, self.out = name, os.path.join(scratch, "record-%d" % time.monotonic_ns())
        words = ["%s=%s" % item for item in options.items()]
        # The output goes to a file. A pipe to another process would be an obstacle to checkpoints.
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
            raise RuntimeError("%s did not end after SIGTERM" % self.name) from None
        if code != 0:
            raise RuntimeError("%s ended with status %d: %s" % (self.name, code, self.words()))
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
            raise RuntimeError("timeout in the wait for " + what)
        time.sleep(0.002)


def redis_answers(port):
    """Reports whether a redis server replies to PING at `port`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100).startswith(b"+PONG")
    except OSError:
        return False


# Drivers ------------------------------------------------------------------------------------------------------------

# The phases of a pause that have a column in the results. A driver reports more phases.
PHASES = ["stop", "scan", "copy"]

Taken = collections.namedtuple("Taken", "at figures")
Taken.__doc__ = "A checkpoint that the driver has reported: its time (CLOCK_MONOTONIC, ns), and its figures."


class Done:
    """The checkpoints of a window.

    `taken` has the single checkpoints. The driver `run` does not report single checkpoints: `taken` is then empty, and
    `count` and `pauses` (percentiles in µs) come from `status`. Figures of single checkpoints are then NaN.
    """

    def __init__(self, taken=(), count=None, pauses=None, behind=0, failed=0):
        self.taken, self.known = list(taken), pauses
        # behind: checkpoints that were skipped because the log writer was too far behind. failed: checkpoints that
        # failed.
        self.behind, self.failed = behind, failed
        self.count = len(self.taken) if count is None else count

    def each(self, name):
        return [one.figures[name] for one in self.taken]

    def figure(self, name):
        """Returns the median of a figure, in the unit of the driver: ns or pages."""
        return middle(self.each(name))

    def pause_us(self, share):
        if self.known:
            return float(self.known["p50" if share <= 0.5 else "p99" if share <= 0.99 else "max"])
        return quantile(self.each("pause"), share) / 1000

    def stood_s(self):
        """Returns the sum of all pauses in seconds. It is estimated from the median if single pauses are unknown."""
        return self.known["p50"] * self.count / 1e6 if self.known else sum(self.each("pause")) / 1e9

    def pages(self):
        return sum(one.figures["precopied"] + one.figures["residual"] for one in self.taken) if self.taken else math.nan


class Driver:
    """A process that takes checkpoints of a running process until `detach`. `counters` may be called at any time."""

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
        """Returns the bytes that the driver has written to the device, and its processor time in s. Updates `peak`."""
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
                raise RuntimeError("timeout in the wait for %s" % what)
            time.sleep(0.01)


class Engine(Driver):
    """The driver that calls the library directly. It reports each checkpoint with all figures."""

    name = "engine"

    def __init__(self, options, pid, hz, store, cpus, tracker="auto"):
        self.taken, self.behind, self.failed = [], 0, 0
        # Converts times of the driver (CLOCK_REALTIME) to the clock of the subject (CLOCK_MONOTONIC).
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
                    print("a checkpoint failed: " + one["failed"], file=sys.stderr, flush=True)
                continue
            self.taken.append(Taken(one["at"] + self.offset, one))

    def take_one(self):
        """Takes one checkpoint, waits until it is durable, and returns its figures. The driver must have the rate 0."""
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
            raise RuntimeError("the driver did not end after the end of its input") from None
        if code != 0:
            raise RuntimeError(self.failure())
        shutil.rmtree(self.store, ignore_errors=True)

    def look(self):
        return {"behind": self.behind, "failed": self.failed}

    def done(self, begin, end):
        """Returns the checkpoints between two instants. Each instant is a result of `look` with its time `at`."""
        return Done([one for one in self.taken if begin["at"] <= one.at < end["at"]],
                    behind=end["behind"] - begin["behind"], failed=end["failed"] - begin["failed"])


class Run(Driver):
    """The driver `undying run --adopt`, as in normal use. Only the values of `status` are known.

    These are the number of checkpoints, and percentiles of the latest pauses.
    """

    name = "run"

    def __init__(self, options, pid, hz, store, cpus, tracker="auto", words=()):
        if not hz:
            raise RuntimeError("the driver `run` needs a rate above 0")
        self.command = [options.undying, "--store", store]
        every = "%dms" % round(1000 / hz)
        super().__init__([*self.command, "run", "--name", "job", "--adopt", str(pid), "--restart", "never", "--every",
                          every, "--tracker", tracker, "--prefer", options.prefer, *words], store, cpus, options.nice)
        self.subject = pid
        self.until(lambda: (self.status() or {}).get("checkpoints", 0) >= 2, "the first checkpoints")

    def status(self):
        said = subprocess.run([*self.command, "status", "job", "--json"], capture_output=True, text=True)
        return json.loads(said.stdout)[0] if said.returncode == 0 else None

    def look(self):
        status = self.status()
        if not status or status["state"] != "running":
            raise RuntimeError("the subject has no guardian any more: %s" % status)
        return status

    def done(self, begin, end):
        refused = lambda status: sum(one["count"] for one in status["refusals"])
        return Done(count=end["checkpoints"] - begin["checkpoints"], pauses=end["pause_us"],
                    failed=refused(end) - refused(begin))

    def detach(self):
        # SIGKILL leaves the subject running. Any other end of the guardian also ends the subject.
        self.process.kill()
        self.process.wait()
        wait_for(lambda: runs(self.subject), "the subject to run without a tracer")
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
    """Starts the chosen driver with a new store. Benches that use a driver start it only here."""
    store = tempfile.mkdtemp(prefix="store-", dir=options.place or scratch)
    return DRIVERS[options.driver](options, pid, hz, store, cpus, **more)


# Windows ------------------------------------------------------------------------------------------------------------

class Window:
    """A stretch of time with or without checkpoints. `begin` and `end` are times of CLOCK_MONOTONIC in ns."""

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
    """Measures a window with checkpoints at the rate `hz`.

    The window begins `settle` seconds after the driver is attached. The function `begin` is called at its beginning.
    """
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
    # The driver reports a checkpoint at the next checkpoint, so the last report of the window needs this time.
    time.sleep(min(1.0, 2 / hz))
    driver.detach()
    return Window(hz, first["at"], last["at"], driver.done(first, last), before, after, dict(driver.peak))


# Figures ------------------------------------------------------------------------------------------------------------

def quantile(values, share):
    """Returns a quantile by nearest rank. Returns NaN without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def middle(values):
    return statistics.median(values) if values else math.nan


def spread(values):
    """Formats the median, the minimum and the maximum as text."""
    return "%8.3f (%.3f to %.3f)" % (middle(values), min(values), max(values)) if values else "       -"


# Options, rows, plots -----------------------------------------------------------------------------------------------

def results(document):
    """Returns a parser with the options of all benches: the program, and the folder and names of the results."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--undying", type=os.path.abspath, default=newest("undying"),
                        help="the program undying [newest in target/]")
    parser.add_argument("--out", help="folder for rows and plots [target/benches]",
                        default=os.path.join(HERE, "..", "target", "benches"))
    parser.add_argument("--tag", default=datetime.date.today().isoformat(),
                        help="suffix of the names of result files [the date]")
    return parser


def arguments(document, **defaults):
    """Returns a parser with the options of `results`, and of all benches of continuous checkpoints."""
    parser = results(document)
    parser.add_argument("--quick", action="store_true", help="a short run of some minutes, instead of about an hour")
    parser.add_argument("--driver", choices=sorted(DRIVERS), default=defaults.get("driver", "engine"))
    parser.add_argument("--engine", default=newest("examples/bench_epochs"),
                        help="the program of the driver `engine` [newest in target/]")
    parser.add_argument("--nice", type=int, default=0, help="niceness of subject and driver, for a busy machine")
    parser.add_argument("--pin", action="store_true", help="give subject, driver and load generator separate "
                        "processors; measure without this option first")
    parser.add_argument("--prefer", choices=("pause", "throughput"), default="pause",
                        help="the same option of `undying run`")
    parser.add_argument("--place", help="folder for stores [the temporary folder]")
    parser.add_argument("--plot", metavar="CSV", help="only draw the plot of earlier rows again")
    return parser


def newest(name):
    found = [os.path.join(TARGET, profile, name) for profile in ("release", "debug")]
    found = [path for path in found if os.path.exists(path)]
    return os.path.realpath(max(found, key=os.path.getmtime)) if found else os.path.join(TARGET, "release", name)


class Rows:
    """The file of raw rows. Each row is written at once, so an interrupted run leaves its rows in the file."""

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
    """Returns matplotlib.pyplot. If matplotlib is missing, prints a message and returns None."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is missing (benches/requirements.txt); --plot CSV draws the plot later")
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
    """Runs a bench with a scratch folder. The folder is removed at the end, also after an error or SIGTERM."""
    scratch = tempfile.mkdtemp(prefix="undying-bench-")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for descriptor in range(200, 256):
        # Subjects inherit descriptors that a shell has left open. Such descriptors can be obstacles to checkpoints.
        try:
            os.close(descriptor)
        except OSError:
            pass
    try:
        work(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
