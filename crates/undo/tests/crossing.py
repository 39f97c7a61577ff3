#!/usr/bin/env python3
"""Two processes meet at one name: one moves files of an earlier time there, the other opens what has the name and writes.

Makes so many files as the first line of standard input says, and moves them all over one another at the second.
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
