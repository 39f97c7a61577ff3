#!/usr/bin/env python3
"""Removes directories, and then creates files that get the inode numbers of the directories.

Usage: reused.py ROOT. After the first line of standard input, the script creates the directories. After the second
line, it removes the directories, creates the files, and keeps the files open. It prints `done` if an inode number was
used again.
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
    print("done" if is_used_again else "no inode number was used again", flush=True)
    sys.stdin.readline()


main()
