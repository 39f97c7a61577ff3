#!/usr/bin/env python3
"""Does a restore from a log take longer as the log gets older?

A subject of 1 GiB writes 1,000 random pages of it every 10 ms and is checkpointed at 100 Hz. After so many epochs it is
killed and restored at once, which is what happens after a death: the log was written past the page cache, so the
device is read. Then it is killed and restored again, with the log in the page cache. Beside it a full image in a
directory of the same subject, the same way. Every restored subject checks each of its pages.

Usage: restore_age.py [--ages 1,100,500,...] [--rounds N] [--mib N] [--pages N] [--hz N] [--undying PATH] [--epochs PATH]
                      [--scratch DIR] [--out FILE.csv]
Raw rows go to benches/runs/, with a plot of the medians beside them (FILE.svg).
Needs root, and `cargo build --release -p undying-cli` and `-p undying-engine --examples`.
"""
import argparse
import csv
import datetime
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from lib.harness import newest

HERE = os.path.dirname(os.path.abspath(__file__))
SUBJECT_C = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Each page holds its number, how often it was written, and words made from both; counts are kept beside. */
static volatile sig_atomic_t asked;
static unsigned long *pages;
static unsigned *counts;

static void ask(int signal) { asked = signal; }

static unsigned long mix(unsigned long x)
{
	x ^= x >> 31, x *= 0x7fb5d329728ea185UL, x ^= x >> 27, x *= 0x81dadef4bc2dd44dUL;
	return x ^ x >> 33;
}

static void stamp(unsigned long page)
{
	unsigned long *words = pages + page * 512, seed = mix(page << 32 | ++counts[page]);
	for (int word = 0; word < 512; word++)
		words[word] = seed += 0x9e3779b97f4a7c15UL;
}

static int is_good(unsigned long page)
{
	unsigned long *words = pages + page * 512, seed = mix(page << 32 | counts[page]);
	for (int word = 0; word < 512; word++)
		if (words[word] != (seed += 0x9e3779b97f4a7c15UL))
			return 0;
	return 1;
}

static void answer(const char *path, unsigned long count)
{
	unsigned long wrong = 0;
	for (unsigned long page = 0; page < count; page++)
		wrong += !is_good(page);
	int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
	if (write(file, wrong ? "bad" : "good", wrong ? 3 : 4) < 0)
		_exit(9);
	close(file);
}

int main(int argc, char **argv)
{
	unsigned long count = strtoull(argv[1], 0, 10) << 8, dirty = strtoull(argv[2], 0, 10), state = 1;
	long period_ns = 1000000000L / strtol(argv[3], 0, 10);
	pages = mmap(0, count * 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	counts = mmap(0, count * 4, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sigaction action = { .sa_handler = ask };
	sigaction(SIGUSR1, &action, 0);
	for (unsigned long page = 0; page < count; page++)
		stamp(page);
	close(open(argv[4], O_CREAT | O_WRONLY, 0600));
	for (;;) {
		struct timespec pause = { 0, period_ns };
		nanosleep(&pause, 0);
		if (asked)
			answer(argv[5], count), asked = 0;
		for (unsigned long number = 0; number < dirty; number++)
			state = mix(state + 0x9e3779b97f4a7c15UL), stamp(state % count);
	}
}
"""
COLUMNS = ["source", "epochs", "taken", "round", "log_mib", "restore_cold_ms", "restore_warm_ms", "cold_cpu_ms",
           "warm_cpu_ms", "load_average"]
PATIENCE_S = 600


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            sys.exit("gave up waiting for " + what)
        time.sleep(0.002)


def run(command):
    """Runs a command; gives its wall time and the processor time of it and of what it reaped, in ms, and its output."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        sys.exit("%s ended with %d:\n%s%s" % (command, done.returncode, done.stdout, done.stderr))
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, used * 1000, done.stdout


def gone(pid):
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    return not os.path.exists("/proc/%d" % pid)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: gone(pid), "the end of pid %d" % pid)


def check(pid, verdict):
    """Asks the subject whether every page is what it wrote there."""
    if os.path.exists(verdict):
        os.unlink(verdict)
    os.kill(pid, signal.SIGUSR1)
    wait_for(lambda: os.path.exists(verdict) and os.path.getsize(verdict) >= 3, "the subject's verdict")
    with open(verdict) as file:
        said = file.read()
    if said != "good":
        sys.exit("the restored subject is wrong: " + said)


def start(program, work, options):
    ready = os.path.join(work, "ready")
    process = subprocess.Popen([program, str(options.mib), str(options.pages), str(options.hz), ready,
                                os.path.join(work, "verdict")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, cwd=work, start_new_session=True)
    wait_for(lambda: os.path.exists(ready), "the subject")
    return process.pid


def bytes_under(folder):
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)


def cool(folder):
    """What is read is not to be in the page cache, whoever read it before."""
    for place, _, names in os.walk(folder):
        for name in names:
            file = os.open(os.path.join(place, name), os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def restores(pid, folder, image, work, options):
    kill(pid)
    cool(folder)
    command = [options.undying, "--store", folder, "restore", image, "--detach"]
    cold, cold_cpu, _ = run(command)
    check(pid, os.path.join(work, "verdict"))
    kill(pid)
    for place, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(place, name), "rb") as file:
                while file.read(1 << 20):
                    pass
    warm, warm_cpu, _ = run(command)
    check(pid, os.path.join(work, "verdict"))
    kill(pid)
    return cold, warm, cold_cpu, warm_cpu


def of_log(program, epochs, work, options):
    pid = start(program, work, options)
    folder = os.path.join(work, "store")
    said = run([options.epochs, str(pid), folder, str(options.hz), str(epochs)])[2]
    size = bytes_under(folder) / 2**20
    return int(said.split()[0]), size, restores(pid, folder, "job", work, options)


def of_image(program, work, options):
    pid = start(program, work, options)
    folder = os.path.join(work, "image")
    run([options.undying, "checkpoint", str(pid), "--image", folder])
    size = bytes_under(folder) / 2**20
    return 1, size, restores(pid, folder, folder, work, options)


def plot(path, rows):
    """Medians over the number of epochs; the image in a directory as a level line."""
    series = []
    for source in ["log", "image"]:
        for column, what in [(5, "device"), (6, "page cache")]:
            ages = sorted({row[1] for row in rows if row[0] == source})
            of = lambda age, column: statistics.median(float(row[column]) for row in rows if row[:2] == [source, age])
            # Those that were taken count: a slow machine leaves some out.
            points = sorted((of(age, 2), of(age, column)) for age in ages)
            series.append(("%s, %s" % ("log" if source == "log" else "image in a directory", what), points))
    top = max(value for _, points in series for _, value in points) * 1.15
    last = max(2, *(age for _, points in series for age, _ in points))
    width, height, left, bottom = 720, 400, 70, 60
    x = lambda age: left + (width - left - 20) * age / last
    y = lambda value: height - bottom - (height - bottom - 20) * value / top
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">' % (width, height),
           '<rect width="100%" height="100%" fill="white"/>']
    for step in range(6):
        value = top * step / 5
        out.append('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.0f</text>'
                   % (left, width - 20, y(value), y(value), left - 8, y(value) + 4, value))
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%d</text>' % (x(last * step / 5), height - bottom + 18, last * step / 5))
    out.append('<text x="%d" y="%d" text-anchor="middle">epochs in the log</text>' % ((left + width) / 2, height - 20))
    out.append('<text transform="translate(18 %d) rotate(-90)" text-anchor="middle">restore, ms</text>' % (height / 2 - 20))
    for number, (name, points) in enumerate(series):
        colour = ["#c0392b", "#2471a3", "#e59866", "#7fb3d5"][number]
        if len(points) == 1:
            points = [(0, points[0][1]), (last, points[0][1])]
        line = " ".join("%.1f,%.1f" % (x(age), y(value)) for age, value in points)
        out.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>' % (line, colour))
        out.append('<text x="%d" y="%d" fill="%s">%s</text>' % (left + 15 + 320 * (number % 2), 18 + 16 * (number // 2), colour, name))
    with open(path, "w") as file:
        file.write("\n".join(out + ["</svg>", ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ages", default="1,50,100,250,500,1000,2000,3000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--hz", type=int, default=100)
    parser.add_argument("--undying", default=newest("undying"))
    parser.add_argument("--epochs", default=newest("examples/epochs"))
    parser.add_argument("--scratch")
    parser.add_argument("--out")
    options = parser.parse_args()
    scratch = tempfile.mkdtemp(prefix="undying-bench-", dir=options.scratch)
    program = os.path.join(scratch, "subject")
    with open(program + ".c", "w") as file:
        file.write(SUBJECT_C)
    subprocess.run(["cc", "-O2", "-o", program, program + ".c"], check=True)
    out = options.out or os.path.join(HERE, "runs", "restore_age-%s.csv" % datetime.date.today().isoformat())
    rows = []
    for turn in range(options.rounds):
        for age in [0] + [int(age) for age in options.ages.split(",")]:
            work = tempfile.mkdtemp(dir=scratch)
            source = "log" if age else "image"
            taken, size, times = of_log(program, age, work, options) if age else of_image(program, work, options)
            shutil.rmtree(work)
            rows.append([source, age, taken, turn, "%.0f" % size] + ["%.1f" % one for one in times + (os.getloadavg()[0],)])
            print(" ".join(str(cell) for cell in rows[-1]), flush=True)
    with open(out, "w", newline="") as file:
        file.write("# kernel %s, %d virtual CPUs, %d MiB, %d pages at %d Hz; command: restore_age.py %s\n" %
                   (platform.release(), os.cpu_count(), options.mib, options.pages, options.hz, " ".join(sys.argv[1:])))
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    plot(os.path.splitext(out)[0] + ".svg", rows)
    shutil.rmtree(scratch)
    print("raw rows: " + out)


if __name__ == "__main__":
    main()
