"""Part two of the demo: kills a python3 program that counts in threads and writes files."""
import os
import signal
import sys
import time

from guarded import Guarded, time_of
from screen import Failure, milliseconds, number

COUNTING_S = 2.5
# A wait in seconds, in which each thread makes at least one step.
PAUSE_S = 0.1


def run(screen, undying, folder):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "counter.py")
    counter = Guarded(undying, folder, "counter", [sys.executable, script, folder])
    screen.title("2. A python3 program with threads and open files, under the same command")
    pid, (seed, _) = counter.pid(), counter.wait("its counters", lambda: state(folder))
    threads, files = facts(pid)
    screen.line("started", f"pid {pid}; {threads} threads, {files} open files; random number in its memory: {seed}")
    screen.wait("counting", COUNTING_S, lambda: f"{number(sum(state(folder)[1]))} steps")
    before = sum(state(folder)[1])
    died = counter.kill()
    screen.line("killed", f"kill -9 {pid}, at step {number(before)}")
    back, sequence, took = counter.wait_back()
    if back != pid:
        raise Failure(f"the program was restored with pid {back}, not with {pid}")
    checkpoint = next(one for one in counter.checkpoints() if one["seq"] == sequence)
    age = died - time_of(checkpoint)
    screen.good("restored", f"with pid {pid} from checkpoint {sequence} ({milliseconds(age)} old), "
                            f"{milliseconds(took)} after undying noticed the death")
    # The files were rolled back to the checkpoint of the memory, and now grow again.
    seed_now, counts = counter.wait("its progress", lambda: state_above(folder, lines_of(folder)))
    if seed_now != seed or facts(pid) != (threads, files):
        raise Failure(f"the restored program differs in its random number, threads or files: {seed_now}, {facts(pid)}")
    screen.good("continues", f"with {threads} threads, {files} open files, and {seed} in its memory; "
                             f"now at step {number(sum(counts))}")
    os.kill(pid, signal.SIGTERM)
    status = counter.wait_end()
    if status != 0:
        raise Failure(f"wrong lines in a file, or another failure; the program ended with {status}:\n{counter.said()}")
    lines = sum(lines_of(folder))
    screen.good("files", f"{len(counts)} files, {number(lines)} lines, every line once and in order")


def state(folder):
    """Reads the random number and the counters from the state file. Returns None if the file has no line yet."""
    try:
        with open(os.path.join(folder, "state"), encoding="ascii") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    words = lines[-1].split() if lines else []
    return (words[0], [int(word) for word in words[1:]]) if words else None


def state_above(folder, lines):
    """Waits PAUSE_S. Then returns the state if each counter exceeds its number in `lines`, otherwise None."""
    time.sleep(PAUSE_S)
    seed, counts = state(folder)
    return (seed, counts) if all(count > line for count, line in zip(counts, lines)) else None


def lines_of(folder):
    """Returns the number of lines in the file of each thread."""
    files = sorted(name for name in os.listdir(folder) if name.startswith("lines"))
    return [open(os.path.join(folder, name), "rb").read().count(b"\n") for name in files]


def facts(pid):
    """Returns the numbers of threads and of open files of a process."""
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))
