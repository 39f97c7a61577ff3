#!/usr/bin/env python3
"""One process cuts files whose old ends are kept, while the other one writes pages of a large file.

Makes its files at the first line of standard input, and changes them at the second. Each open is preceded by one that
makes a file: a file that the watch opens then reports its own reads, too.
"""

import os
import sys

ROOT = sys.argv[1]
SMALL, SMALL_BYTES = 400, 100_000
PAGES, PAGE = 16_384, 4096


def small(number):
    return os.path.join(ROOT, f"small{number}")


def make():
    for number in range(SMALL):
        with open(small(number), "wb") as file:
            file.write(bytes([number % 251]) * SMALL_BYTES)
    with open(os.path.join(ROOT, "large"), "wb") as file:
        file.write(b"large   " * (PAGES * PAGE // 8))


def write():
    file = os.open(os.path.join(ROOT, "large"), os.O_RDWR)
    while True:
        for page in range(0, PAGES, 7):
            os.pwrite(file, b"written", page * PAGE)


def main():
    sys.stdin.readline()
    make()
    print("done", flush=True)
    sys.stdin.readline()
    writer = os.fork()
    if writer == 0:
        write()
    for number in range(SMALL):
        os.close(os.open(os.path.join(ROOT, f"new{number}"), os.O_WRONLY | os.O_CREAT, 0o644))
        file = os.open(small(number), os.O_RDWR)
        os.ftruncate(file, 50_000)
        os.close(file)
    os.kill(writer, 9)
    os.waitpid(writer, 0)
    print("done", flush=True)
    sys.stdin.readline()


main()
