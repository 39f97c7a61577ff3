#!/usr/bin/env python3
"""How long do a checkpoint and a restore take, beside CRIU's on the same subjects?

Subjects: a tiny process, 1 GiB of touched memory, redis with 1,000,000 keys. Each round checkpoints one fresh
subject with `--kill` and restores it; rounds of the tools alternate. Figures are wall times of whole commands, as a
user sees them, the pause that undying reports (all stops together), and restores with the image in the page cache (the
first read of an image after a checkpoint past the cache is told apart as "cold"). Beside a gigabyte, `direct` writes as
much to a new file of the same disk past the cache, four requests at a time, and makes it durable. "lazy_first" is the
time from the start of `restore --lazy` of a gigabyte in the page cache to the first instruction, as a subject that
reads the clock all the time sees it.

Usage: checkpoint_restore.py [--rounds N] [--only tiny,gib,redis] [--undying PATH] [--criu PATH] [--out FILE.csv]
Needs root. Without CRIU only undying is measured. Raw rows go to benches/runs/; medians are printed.
"""
import argparse
import csv
import datetime
import json
import mmap
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from lib.harness import newest

HERE = os.path.dirname(os.path.abspath(__file__))
SUBJECT_C = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	size_t bytes = strtoull(argv[1], 0, 10);
	unsigned long state = 88172645463325252UL, *words = bytes ? mmap(0, bytes, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : 0;
	for (size_t i = 0; i < bytes / 8; i++) {
		state ^= state << 13, state ^= state >> 7, state ^= state << 17;
		words[i] = state;
	}
	close(open(argv[2], O_CREAT | O_WRONLY, 0600));
	if (argc == 3)
		for (;;)
			usleep(10000);
	/* Keeps when the first long gap ended, once it is zero. */
	volatile long *end = mmap(0, 4096, 3, MAP_SHARED, open(argv[3], O_RDWR), 0);
	struct timespec now;
	for (long last = 0, at;; last = at) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		at = now.tv_sec * 1000000000 + now.tv_nsec;
		if (at - last > 50000000 && !*end)
			*end = at;
	}
}
"""
COLUMNS = ["subject", "tool", "round", "checkpoint_ms", "pause_ms", "restore_cold_ms", "restore_ms", "lazy_first_ms"]
PATIENCE_S = 60


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            sys.exit("gave up waiting for " + what)
        time.sleep(0.002)


def timed(command):
    start = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        sys.exit("%s ended with %d:\n%s%s" % (command, done.returncode, done.stdout, done.stderr))
    return (time.monotonic() - start) * 1000


def gone(pid):
    """Reaps the subject when it is our child; an orphan is reaped by whoever adopted it."""
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
        wait_for(self.answers, "redis")
        fill = subprocess.Popen(["redis-cli", "-p", str(self.port), "--pipe"], stdin=subprocess.PIPE,
                                stdout=subprocess.DEVNULL)
        for first in range(0, self.keys, 10000):
            rows = ("SET k%d %0100d\r\n" % (key, key) for key in range(first, min(first + 10000, self.keys)))
            fill.stdin.write("".join(rows).encode())
        fill.stdin.close()
        fill.wait()
        return process.pid

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


class Undying:
    name = "undying"

    def __init__(self, binary):
        self.binary = binary

    def checkpoint(self, pid, image):
        return timed([self.binary, "checkpoint", str(pid), "--image", image, "--kill"])

    def pause_ms(self, image):
        shown = subprocess.run([self.binary, "show", image, "--json"], capture_output=True, text=True, check=True)
        return json.loads(shown.stdout)["pause_us"] / 1000

    def restore(self, image, *options):
        return timed([self.binary, "restore", image, "--detach", *options])


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
        return timed([self.binary, "dump", "-t", str(pid), "-D", image, "--shell-job"])

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
        return timed([self.binary, "restore", "-d", "-D", image, "--shell-job"])


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


def into_page_cache(image):
    for folder, _, files in os.walk(image):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                while file.read(1 << 20):
                    pass


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
    tool.restore(image, "--lazy")
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="tiny,gib,redis")
    parser.add_argument("--undying", default=newest("undying"))
    parser.add_argument("--criu", default=shutil.which("criu"))
    parser.add_argument("--out")
    options = parser.parse_args()
    scratch = tempfile.mkdtemp(prefix="undying-bench-")
    program = os.path.join(scratch, "subject")
    with open(program + ".c", "w") as file:
        file.write(SUBJECT_C)
    subprocess.run(["cc", "-O2", "-o", program, program + ".c"], check=True)
    subjects = {"tiny": Memory(program, 0), "gib": Memory(program, 1 << 30), "redis": Redis(1000000)}
    tools = [Undying(options.undying)] + ([Criu(options.criu)] if options.criu else [])
    day = datetime.date.today().isoformat()
    out = options.out or os.path.join(HERE, "runs", "checkpoint_restore-%s.csv" % day)
    rows = []
    for name in options.only.split(","):
        for turn in range(options.rounds):
            for tool in tools + [Direct()] * (name == "gib"):
                work = tempfile.mkdtemp(dir=scratch)
                figures = measure(subjects[name], tool, work)
                shutil.rmtree(work)
                rows.append([name, tool.name, turn] + [f if f == "" else "%.3f" % f for f in figures])
                print(" ".join(str(cell) for cell in rows[-1]), flush=True)
    with open(out, "w", newline="") as file:
        file.write("# kernel %s, %d processors, %s\n" % (platform.release(), os.cpu_count(), " ".join(sys.argv[1:])))
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    for name in options.only.split(","):
        for tool in tools + [Direct()]:
            for index, column in list(enumerate(COLUMNS))[3:]:
                found = [float(row[index]) for row in rows if row[:2] == [name, tool.name] and row[index] != ""]
                if found:
                    print("%-6s %-8s %-16s median %9.2f  min %9.2f  max %9.2f" %
                          (name, tool.name, column, statistics.median(found), min(found), max(found)))
    shutil.rmtree(scratch)
    print("raw rows: " + out)


if __name__ == "__main__":
    main()
