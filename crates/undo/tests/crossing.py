#!/usr/bin/env python3
"""Two processes use one name at the same time. One renames older files to this name, the other opens it and writes.

Usage: crossing.py ROOT. The first line of standard input contains the number of files to create. After the second line,
the script renames all these files to the name `target`, one after the other.
"""

import os
import sys

ROOT = sys.argv[1]
TARGET = os.path.join(ROOT, "target")


def make(count):
    for number in range(count):
        with open(os.path.join(ROOT, f"old{number}"), "wb") as file:
            file.write(bytes([number % 251]) * 100_000)
    with open(TARGET, "wb") as file:
        file.write(b"first" * 20_000)


def write():
    while True:
        try:
            fd = os.open(TARGET, os.O_RDWR)
        except FileNotFoundError:
            continue
        os.pwrite(fd, b"written", 50_000)
        os.close(fd)


def main():
    count = int(sys.stdin.readline())
    make(count)
    print("done", flush=True)
    sys.stdin.readline()
    writer = os.fork()
    if writer == 0:
        write()
    for number in range(count):
        os.rename(os.path.join(ROOT, f"old{number}"), TARGET)
    os.kill(writer, 9)
    os.waitpid(writer, 0)
    print("done", flush=True)
    sys.stdin.readline()


main()
