#!/usr/bin/env python3
"""Runs a command while its processors are taken away again and again, as a busy host does to a virtual machine.

A test that fails under it judges the machine, or has found something that only happens there. Each processor is taken by
a thread of the highest real-time priority, for 30 ms in the mean (exponentially distributed), and one time in twenty for
up to --longest-ms; between two times it is left for as long as --share asks. What comes is decided by --seed.

Unlike a host it leaves interrupts alone: timers fire in time, and what they wake up may go to another processor.

Ends with the command's exit status; 2 when it cannot take processors (it needs root).
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time

MEAN_S = 0.03
LONG_ONE_IN = 20
LONG_FROM_S = 0.1


def take_away(processor: int, seed: int, share: float, longest_s: float) -> None:
    """Never returns."""
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))
    chance = random.Random(f"{seed} {processor}")
    while True:
        is_long = chance.randrange(LONG_ONE_IN) == 0
        seconds = chance.uniform(min(LONG_FROM_S, longest_s), longest_s) if is_long else chance.expovariate(1 / MEAN_S)
        seconds = min(seconds, longest_s)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        time.sleep(seconds * (1 - share) / share)


def start_thief(processor: int, seed: int, share: float, longest_s: float) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            take_away(processor, seed, share, longest_s)
        except OSError as error:
            print(f"robbed: cannot take processor {processor}: {error}", file=sys.stderr)
        finally:
            os._exit(2)
    return pid


def share_between_0_and_1(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError("a share is more than 0 and less than 1")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="printed; else a random one")
    parser.add_argument("--share", type=share_between_0_and_1, default=0.3, help="of each processor's time (0.3)")
    parser.add_argument("--longest-ms", type=float, default=500.0, help="the longest time without a processor (500)")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --, with its arguments")
    asked = parser.parse_args()
    print(f"robbed: seed {asked.seed}, share {asked.share}, at most {asked.longest_ms:.0f} ms", file=sys.stderr)
    processors = sorted(os.sched_getaffinity(0))
    thieves = [start_thief(number, asked.seed, asked.share, asked.longest_ms / 1e3) for number in processors]
    try:
        status = subprocess.run(asked.command, check=False).returncode
    finally:
        ended = [thief for thief in thieves if os.waitpid(thief, os.WNOHANG) != (0, 0)]
        for thief in set(thieves) - set(ended):
            os.kill(thief, signal.SIGKILL)
            os.waitpid(thief, 0)
    if ended:
        print("robbed: not every processor was taken; this needs root", file=sys.stderr)
        return 2
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
