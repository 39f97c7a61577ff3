#!/usr/bin/env python3
"""Kills children at random moments while they open files by relative paths.

Usage: killed.py ROOT SEED. Each line of standard input contains the number of children to start and to kill.
"""

import os
import random
import sys
import time

ROOT, RANDOM = sys.argv[1], random.Random(int(sys.argv[2]))
CHILDREN = 4


def open_files(number):
    number = str(number)
    while True:
        os.close(os.open(number, os.O_WRONLY | os.O_CREAT, 0o644))
        os.unlink(number)


def main():
    os.chdir(ROOT)
    for line in sys.stdin:
        for _ in range(int(line) // CHILDREN):
            children = []
            for number in range(CHILDREN):
                child = os.fork()
                if child == 0:
                    open_files(number)
                children.append(child)
            for child in children:
                time.sleep(RANDOM.uniform(0, 0.001))
                os.kill(child, 9)
                os.waitpid(child, 0)
        print("done", flush=True)


main()
