#!/usr/bin/env python3
"""Removes directories, and makes files that get their inode numbers.

Makes the directories at the first line of standard input. At the second it removes them, and keeps the files open.
"""

import os
import sys

ROOT, COUNT = sys.argv[1], 40


def directory(number):
    return os.path.join(ROOT, f"directory{number}")


def main():
    sys.stdin.readline()
    for number in range(COUNT):
        os.mkdir(directory(number))
    print("done", flush=True)
    sys.stdin.readline()
    numbers = {os.stat(directory(number)).st_ino for number in range(COUNT)}
    for number in range(COUNT):
        os.rmdir(directory(number))
    files = []
    for number in range(COUNT):
        file = os.open(os.path.join(ROOT, f"file{number}"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(file, b"written")
        files.append(file)
    is_used_again = any(os.fstat(file).st_ino in numbers for file in files)
    print("done" if is_used_again else "no number was used again", flush=True)
    sys.stdin.readline()


main()
