"""Counts in four threads, each with a file of its own; judges its files when it is told to end.

Usage: counter.py FOLDER. `FOLDER/state` always holds one line: a number that only this process's memory knows since
its start, then how far each thread has counted.
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
    """One line a step. After a crash the same lines are written again at the same place."""
    with open(os.path.join(FOLDER, f"lines{index}"), "w+", encoding="ascii") as file:
        while not stopping.wait(0.002):
            counters[index] += 1
            file.write(f"{counters[index]}\n")
            file.flush()
        file.seek(0)
        if file.read().split() != [str(n + 1) for n in range(counters[index])]:
            wrong.append(index)


def tell(state):
    text = f"{SEED} " + " ".join(str(n) for n in counters)
    os.pwrite(state, text.ljust(99).encode() + b"\n", 0)


signal.signal(signal.SIGTERM, lambda *_: stopping.set())
threads = [threading.Thread(target=count, args=(index,)) for index in range(THREADS)]
for thread in threads:
    thread.start()
handle = os.open(os.path.join(FOLDER, "state"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
while not stopping.wait(0.005):
    tell(handle)
for thread in threads:
    thread.join()
tell(handle)
sys.exit(1 if wrong else 0)
