#!/usr/bin/env python3
"""Runs a command, and repeatedly takes the processors away from it, like a busy host does to a virtual machine.

If a test fails only under this script, there are two explanations. Either the test depends on the speed of the machine,
or it has found an error that needs such delays.

For each processor, one process with the highest real-time priority repeatedly occupies the processor. Each time lasts
30 ms on average, exponentially distributed. One of twenty times lasts up to --longest-ms. Between two times, the
process sleeps, so that the processor is occupied for the fraction --share of the time. --seed determines the durations.

Unlike a busy host, the script does not delay interrupts. Timers therefore expire on time, and the kernel can move a
thread that wakes up to another processor.

Exits with the exit status of the command, or with 2 if it cannot occupy the processors. It needs root.
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
    """Occupies a processor repeatedly. Never returns."""
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
            print(f"steal_time: cannot occupy processor {processor}: {error}", file=sys.stderr)
        finally:
            os._exit(2)
    return pid


def share_between_0_and_1(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError("the share must be more than 0 and less than 1")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32),
                        help="seed of the durations, which is printed (a random number)")
    parser.add_argument("--share", type=share_between_0_and_1, default=0.3,
                        help="fraction of the time in which each processor is occupied (0.3)")
    parser.add_argument("--longest-ms", type=float, default=500.0,
                        help="longest time for which a processor is occupied (500)")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the command with its arguments, after --")
    asked = parser.parse_args()
    print(f"steal_time: seed {asked.seed}, share {asked.share}, at most {asked.longest_ms:.0f} ms", file=sys.stderr)
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
        print("steal_time: not every processor was occupied; this needs root", file=sys.stderr)
        return 2
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
