#!/usr/bin/env python3
"""How long do the commands for a checkpoint and a restore take, compared with CRIU?

Subjects (the measured programs): a tiny process, a process with 1 GiB of touched memory, and redis with 1,000,000 keys.
Each round starts a new subject, checkpoints it with `--kill`, and restores it. In each round, the tools take turns.

  checkpoint_ms    wall time of the checkpoint command
  pause_ms         pause that the tool reports (the sum of all stops)
  restore_cold_ms  wall time of the first restore. undying writes an image past the page cache, so this restore reads
                   the image from the disk.
  restore_ms       wall time of a second restore, with the image in the page cache
  lazy_first_ms    time from the start of `restore --lazy` to the first instruction of the subject, which reads the
                   clock in a loop. Measured for the subject of 1 GiB, with the image in the page cache.

For the subject of 1 GiB, the tool `direct` measures the disk. It writes 1 GiB to a new file, bypasses the page cache,
has four requests in flight, and makes the file durable.

Needs root. If CRIU is missing, only undying is measured. Rows are written to target/benches/. Medians are printed.
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
    """A process that fills memory and then sleeps (programs/memory.c)."""

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
    """Decodes a variable-length integer (varint) of a protobuf message at `at`. Returns the value and its end."""
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
        """Returns the sum of freezing_time and frozen_time in the statistics of CRIU."""
        with open(os.path.join(image, "stats-dump"), "rb") as file:
            # The file begins with two magic numbers and a length. The first field of the message is for a dump.
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
    """The time of the disk alone: writes as many random bytes as the subject has memory."""

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
    parser.add_argument("--criu", default=shutil.which("criu"), help="the program CRIU [criu in PATH]")
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
