#!/usr/bin/env python3
"""One process truncates small files, so that the watch must save their removed ends. A child writes to a large file.

Usage: reading.py ROOT. After the first line of standard input, the script creates its files. After the second line, it
changes them. Before it opens a small file, it creates another file. If the watch opens a file after this creation, its
own reads of the file also cause events.
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
