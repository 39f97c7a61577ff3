"""Counts in four threads, each with its own file. At SIGTERM, the program checks its files.

Usage: counter.py FOLDER. The last line of `FOLDER/state` contains a random number and the counter of each thread. The
random number is chosen at the start and kept only in memory. All files grow by appended lines: after a death, a
rollback truncates them to their length at the checkpoint. Exit status 1: the lines of a file are wrong.
"""
import os
import random
import signal
import sys
import threading

FOLDER = sys.argv[1]
THREADS = 4
SEED = random.randrange(10**9)
counters = [0] * THREADS
wrong = []
stopping = threading.Event()


def count(index):
    """Writes one line for each step. At the end, checks that the file has each line once and in order."""
    path = os.path.join(FOLDER, f"lines{index}")
    with open(path, "w", encoding="ascii") as file:
        while not stopping.wait(0.002):
            counters[index] += 1
            file.write(f"{counters[index]}\n")
            file.flush()
    with open(path, encoding="ascii") as file:
        if file.read().split() != [str(n + 1) for n in range(counters[index])]:
            wrong.append(index)


def tell(state):
    text = f"{SEED} " + " ".join(str(n) for n in counters)
    os.write(state, text.encode() + b"\n")


signal.signal(signal.SIGTERM, lambda *_: stopping.set())
threads = [threading.Thread(target=count, args=(index,)) for index in range(THREADS)]
for thread in threads:
    thread.start()
handle = os.open(os.path.join(FOLDER, "state"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
while not stopping.wait(0.005):
    tell(handle)
for thread in threads:
    thread.join()
tell(handle)
sys.exit(1 if wrong else 0)
