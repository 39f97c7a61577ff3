#!/usr/bin/env python3
"""How long do a checkpoint and a restore take, beside CRIU's on the same subjects?

Subjects: a tiny process, 1 GiB of touched memory, redis with 1,000,000 keys. Each round checkpoints one fresh
subject with `--kill` and restores it; rounds of the tools alternate. Figures are wall times of whole commands, as a
user sees them, the pause that undying reports (all stops together), and restores with the image in the page cache (the
first read of an image after a checkpoint past the cache is told apart as "cold"). Beside a gigabyte, `direct` writes as
much to a new file of the same disk past the cache, four requests at a time, and makes it durable. "lazy_first" is the
time from the start of `restore --lazy` of a gigabyte in the page cache to the first instruction, as a subject that
reads the clock all the time sees it.

Needs root. Without CRIU only undying is measured. Raw rows go to target/benches/; medians are printed.
"""
import json
import mmap
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

from lib.harness import (Rows, build, command, gone, into_page_cache, kill, main, redis_answers, results, wait_for)

QUESTION = "checkpoint_restore"
FIGURES = ["checkpoint_ms", "pause_ms", "restore_cold_ms", "restore_ms", "lazy_first_ms"]
COLUMNS = ["subject", "tool", "round", *FIGURES]


class Memory:
    """A process that touches memory and then sleeps."""

    def __init__(self, program, size):
        self.program, self.size = program, size

    def start(self, work, *more):
        ready = os.path.join(work, "ready")
        process = subprocess.Popen([self.program, str(self.size), ready, *more], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=work,
                                   start_new_session=True)
        wait_for(lambda: os.path.exists(ready), "the subject")
        return process.pid


class Redis:
    """redis-server with keys k0 … and values of 100 bytes."""

    def __init__(self, keys, port=7931):
        self.keys, self.port = keys, port

    def start(self, work):
        process = subprocess.Popen(["redis-server", "--port", str(self.port), "--save", "", "--dir", work],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        wait_for(lambda: redis_answers(self.port), "redis")
        fill = subprocess.Popen(["redis-cli", "-p", str(self.port), "--pipe"], stdin=subprocess.PIPE,
                                stdout=subprocess.DEVNULL)
        for first in range(0, self.keys, 10000):
            rows = ("SET k%d %0100d\r\n" % (key, key) for key in range(first, min(first + 10000, self.keys)))
            fill.stdin.write("".join(rows).encode())
        fill.stdin.close()
        fill.wait()
        return process.pid


class Undying:
    name = "undying"

    def __init__(self, binary):
        self.binary = binary

    def checkpoint(self, pid, image):
        return command([self.binary, "checkpoint", str(pid), "--image", image, "--kill"])[0]

    def pause_ms(self, image):
        shown = subprocess.run([self.binary, "show", image, "--json"], capture_output=True, text=True, check=True)
        return json.loads(shown.stdout)["pause_us"] / 1000

    def restore(self, image, *options):
        return command([self.binary, "restore", image, "--detach", *options])[0]


def number(message, at):
    """A variable-length integer of a protobuf message, and where it ends."""
    value, shift = 0, 0
    while True:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 0x80:
            return value, at


class Criu:
    name = "criu"

    def __init__(self, binary):
        self.binary = binary

    def checkpoint(self, pid, image):
        os.mkdir(image)
        return command([self.binary, "dump", "-t", str(pid), "-D", image, "--shell-job"])[0]

    def pause_ms(self, image):
        """What it says itself: frozen_time of its statistics, and freezing_time before."""
        with open(os.path.join(image, "stats-dump"), "rb") as file:
            # Two magic numbers and a length; the message has all of a dump in its first field.
            message = file.read()[12:]
        length, at = number(message, 1)
        times = {}
        while at < 2 + length and len(times) < 2:
            field, at = number(message, at)
            times[field >> 3], at = number(message, at)
        return (times[1] + times[2]) / 1000

    def restore(self, image):
        return command([self.binary, "restore", "-d", "-D", image, "--shell-job"])[0]


class Direct:
    """What the disk takes: the same bytes, not compressible, without a process."""

    name = "direct"
    BLOCK, THREADS = 2 << 20, 4

    def write(self, path, size):
        buffers = [mmap.mmap(-1, self.BLOCK) for _ in range(self.THREADS)]
        for buffer in buffers:
            buffer.write(os.urandom(self.BLOCK))
        start = time.monotonic()
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        os.posix_fallocate(file, 0, size)

        def work(first):
            for block in range(first, size // self.BLOCK, self.THREADS):
                os.pwrite(file, buffers[first], block * self.BLOCK)
        threads = [threading.Thread(target=work, args=(first,)) for first in range(self.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.fdatasync(file)
        os.close(file)
        return (time.monotonic() - start) * 1000


def lazy_first(subject, tool, work):
    image, clock = os.path.join(work, "lazy"), os.path.join(work, "clock")
    os.makedirs(os.path.join(work, "again"))
    with open(clock, "wb") as file:
        file.truncate(4096)
    pid = subject.start(os.path.join(work, "again"), clock)
    tool.checkpoint(pid, image)
    wait_for(lambda: gone(pid), "the end of the subject")
    into_page_cache(image)
    with open(clock, "r+b") as file:
        file.write(bytes(8))
    start = time.monotonic_ns()
    tool.restore(image, "--lazy", "--files", "keep")
    with open(clock, "rb") as file:
        end = int.from_bytes(file.read(8), "little")
    kill(pid)
    return (end - start) / 1e6


def measure(subject, tool, work):
    if tool.name == Direct.name:
        return tool.write(os.path.join(work, "direct"), subject.size), "", "", "", ""
    image = os.path.join(work, "image")
    pid = subject.start(work)
    checkpoint = tool.checkpoint(pid, image)
    wait_for(lambda: gone(pid), "the end of the subject")
    pause = tool.pause_ms(image)
    cold = tool.restore(image)
    kill(pid)
    into_page_cache(image)
    warm = tool.restore(image)
    kill(pid)
    is_lazy = tool.name == Undying.name and isinstance(subject, Memory) and subject.size > 0
    return checkpoint, pause, cold, warm, lazy_first(subject, tool, work) if is_lazy else ""


def bench():
    parser = results(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="tiny,gib,redis", help="subjects [tiny,gib,redis]")
    parser.add_argument("--criu", default=shutil.which("criu"), help="CRIU, to compare with [that in PATH]")
    options = parser.parse_args()
    tools = [Undying(options.undying)] + ([Criu(options.criu)] if options.criu else [])
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        program = build("memory", scratch)
        subjects = {"tiny": Memory(program, 0), "gib": Memory(program, 1 << 30), "redis": Redis(1000000)}
        for name in options.only.split(","):
            for turn in range(options.rounds):
                for tool in tools + [Direct()] * (name == "gib"):
                    folder = tempfile.mkdtemp(dir=scratch)
                    figures = measure(subjects[name], tool, folder)
                    shutil.rmtree(folder)
                    rows.add(subject=name, tool=tool.name, round=turn, **dict(zip(FIGURES, figures)))
                    print(" ".join(rows.rows[-1].values()), flush=True)
    main(work)
    rows.close()
    for name in options.only.split(","):
        for tool in tools + [Direct()]:
            mine = [row for row in rows.rows if (row["subject"], row["tool"]) == (name, tool.name)]
            for figure in FIGURES:
                found = [float(row[figure]) for row in mine if row[figure] != ""]
                if found:
                    print("%-6s %-8s %-16s median %9.2f  min %9.2f  max %9.2f" %
                          (name, tool.name, figure, statistics.median(found), min(found), max(found)))


if __name__ == "__main__":
    bench()
