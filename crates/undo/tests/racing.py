#!/usr/bin/env python3
"""Two processes race for names. One makes calls that fail because a directory has content, the other removes this content
and the directory, so that the calls can succeed after all.

Usage: racing.py ROOT. The first line of standard input contains the number of directories to create. The race begins
with the second line.
"""

import mmap
import os
import sys

ROOT = sys.argv[1]


def path(name):
    return os.path.join(ROOT, name)


def attempt(call, *paths):
    try:
        call(*map(path, paths))
    except OSError:
        pass


def make(count):
    for number in range(count):
        os.mkdir(path(f"d{number}"))
        os.mkdir(path(f"e{number}"))
        for name in (f"d{number}/x", f"f{number}"):
            with open(path(name), "w") as file:
                file.write(f"{name} at first")


def meet(counts, own, number):
    """Waits until the other process is at the same directory."""
    counts[own] = number % 100 + 1
    while counts[1 - own] not in (number % 100 + 1, (number + 1) % 100 + 1):
        pass


def main():
    count = int(sys.stdin.readline())
    make(count)
    print("done", flush=True)
    sys.stdin.readline()
    counts = mmap.mmap(-1, 4096)
    remover = os.fork()
    for number in range(count):
        meet(counts, int(remover == 0), number)
        if remover == 0:
            attempt(os.unlink, f"d{number}/x")
            attempt(os.rmdir, f"d{number}")
        elif number % 3 == 0:
            attempt(os.rmdir, f"d{number}")
        elif number % 3 == 1:
            attempt(os.rename, f"e{number}", f"d{number}")
        else:
            attempt(os.rename, f"f{number}", f"d{number}")
    if remover == 0:
        os._exit(0)
    os.waitpid(remover, 0)
    print("done", flush=True)
    sys.stdin.readline()


main()
