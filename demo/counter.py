"""Counts in four threads, each with a file of its own; judges its files when it is told to end.

Usage: counter.py FOLDER. The last line of `FOLDER/state` is a number that only this process's memory knows since its
start, then how far each thread has counted. All files are appended to: after a death they go back to the checkpoint.
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
    """One line a step. After a crash the file is cut back to the checkpoint, and the same lines follow."""
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
