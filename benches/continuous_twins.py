#!/usr/bin/env python3
"""How much slower does a computation become under continuous checkpoints, on a machine whose speed varies?

If other programs share the machine, two successive windows differ by 5 % and more, independent of their length.
Therefore, two equal programs (`twins`) run on one processor, and the scheduler switches between them every few
milliseconds. Changes of the speed affect both twins. The twins have checkpoints in turn, which cancels differences
between them. A rate is per second of the processor time of a twin. Each twin gets half of the processor, so the driver
uses half the rate.

  tracking      processor time for a piece of work of the twin with checkpoints, divided by that of the other twin,
                minus 1. It contains page faults at first writes, and the effect on caches. The bench uses the geometric
                mean of both turns.
  pauses        sum of the pauses, divided by the rest of the window. For this, the other twin is stopped, so that the
                measured twin has the whole processor.
  interference  cost of a checkpoint for other programs, because undying uses memory bandwidth and caches. It is the
                processor time for a piece of work of the twin *without* checkpoints: that of a whole period, divided by
                that of the quiet part of the period (QUIET), minus 1. This is doubled, because a program that has the
                whole processor has twice as many checkpoints per second.
  total         1 + tracking + pauses + interference

The programs, their checks and the goals are those of continuous_slowdown.py.
"""
import bisect
import math
import os
import signal

from continuous_slowdown import GOALS, KERNELS, by_thread, piece
from lib.harness import (Rows, Subject, arguments, main, middle, plotter, processors, read_rows, save, spread,
                         with_checkpoints)

QUESTION = "continuous_twins"
# At higher rates, the quiet part of a period is too short.
RATES = [1, 10, 25]
# The quiet part of a period, as fractions of the time between two checkpoints. The work for the first checkpoint has
# ended, and the work for the second checkpoint has not begun.
QUIET = (0.45, 0.8)
BINS = 20
ALONE_S = 3.0
COLUMNS = ["kernel", "hz", "round", "twin", "seconds", "checkpoints", "ratio", "pauses", "alone_hz", "interference",
           "piece_ms_without", "driver_cpu", "pages_each", *["bin%d" % number for number in range(BINS)]]


def profile(record, window):
    """Returns how the speed of the other twin depends on the time since the last checkpoint, and the interference.

    `record` is the record of a single thread. The first result has BINS values: the mean processor time for a piece of
    work in this part of a period, divided by the mean of all. The second result is the mean of all, divided by the mean
    of the quiet part, minus 1. A value without a piece of work is NaN.
    """
    stamps = [one.at for one in window.done.taken]
    sums, counts, quiet, whole = [0.0] * BINS, [0] * BINS, [0, 0], [0, 0]
    for (_, before), (at, after) in zip(record, record[1:]):
        index = bisect.bisect_right(stamps, at) - 1
        if not 0 <= index < len(stamps) - 1:
            continue
        share = (at - stamps[index]) / (stamps[index + 1] - stamps[index])
        sums[int(share * BINS)] += after - before
        counts[int(share * BINS)] += 1
        for of in [whole] + [quiet] * (QUIET[0] <= share < QUIET[1]):
            of[0] += after - before
            of[1] += 1
    mean, quiet = (total / count if count else math.nan for total, count in (whole, quiet))
    return [total / count / mean if count else math.nan for total, count in zip(sums, counts)], mean / quiet - 1


def measure(options, rows, scratch, kernel, rates):
    _, driver_cpus, _ = processors(options)
    # Independent of --pin, both twins run on the same processor.
    subject_cpus = {min(os.sched_getaffinity(0))}
    twins, turns = [], []
    try:
        for _ in range(2):
            twins.append(Subject(scratch, kernel, dict(KERNELS[kernel], threads=1), subject_cpus, options.nice))
        for turn in range(options.rounds):
            for hz in rates:
                for twin in range(2):
                    window = with_checkpoints(options, twins[twin].pid, hz / 2, max(options.seconds, 8 / hz), scratch,
                                              driver_cpus)
                    other = twins[1 - twin].pid
                    os.kill(other, signal.SIGSTOP)
                    try:
                        alone = with_checkpoints(options, twins[twin].pid, hz, max(ALONE_S, 3 / hz), scratch, driver_cpus)
                    finally:
                        os.kill(other, signal.SIGCONT)
                    turns.append((turn, hz, twin, window, alone))
        records = [by_thread(subject.stop()) for subject in twins]
    except BaseException:
        for subject in twins:
            subject.kill()
        raise
    for turn, hz, twin, window, alone in turns:
        _, cpu, _ = piece(records[twin], window)
        _, cpu_without, _ = piece(records[1 - twin], window)
        bins, interference = profile(records[1 - twin][0], window)
        stood = alone.done.stood_s()
        rows.add(kernel=kernel, hz=hz, round=turn, twin=twin, seconds=window.seconds, checkpoints=window.done.count,
                 ratio=cpu / cpu_without, pauses=stood / (alone.seconds - stood), alone_hz=alone.achieved_hz,
                 interference=2 * interference, piece_ms_without=cpu_without / 1e6, driver_cpu=window.driver_cpu,
                 pages_each=window.done.pages() / max(1, window.done.count),
                 **{"bin%d" % number: value for number, value in enumerate(bins)})


def totals(rows, kernel, hz):
    """Returns tracking, pauses, interference and total of each round."""
    here = [one for one in rows if one["kernel"] == kernel and float(one["hz"]) == hz]
    found = []
    for turn in sorted({one["round"] for one in here}, key=int):
        pair = [one for one in here if one["round"] == turn]
        tracking = math.sqrt(math.prod(float(one["ratio"]) for one in pair)) - 1
        pauses, interference = (sum(float(one[name]) for one in pair) / len(pair) for name in ("pauses", "interference"))
        found.append((tracking, pauses, interference, 1 + tracking + pauses + interference))
    return found


def report(rows):
    for kernel, hz in sorted({(one["kernel"], float(one["hz"])) for one in rows}):
        columns = list(zip(*totals(rows, kernel, hz)))
        print("%-12s %5g Hz | tracking %s pauses %s interference %s total %s goal %s" % (
            kernel, hz, *(spread(list(column)) for column in columns), GOALS[kernel].get(hz, "-")), flush=True)


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    kernels = sorted({one["kernel"] for one in rows})
    figure, panes = plot.subplots(2, len(kernels), squeeze=False, layout="constrained", figsize=(4.6 * len(kernels), 6))
    for (above, below), kernel in zip(panes.T, kernels):
        rates = sorted({float(one["hz"]) for one in rows if one["kernel"] == kernel})
        for spot, hz in enumerate(rates):
            found = totals(rows, kernel, hz)
            base = 0
            for column, (name, color) in enumerate((("tracking", "#4c78a8"), ("pauses", "#f58518"),
                                                    ("interference", "#54a24b"))):
                part = 100 * middle([one[column] for one in found])
                above.bar(spot, part, 0.55, bottom=base, color=color, label=name if spot == 0 else None, zorder=2)
                base += max(0, part)
            all_of = [100 * one[3] - 100 for one in found]
            above.plot([spot, spot], [min(all_of), max(all_of)], color="black", lw=1, zorder=3,
                       label="total, minimum to maximum" if spot == 0 else None)
            if hz in GOALS[kernel]:
                above.plot([spot - 0.35, spot + 0.35], [100 * GOALS[kernel][hz] - 100] * 2, color="crimson", lw=1.5,
                           zorder=4, label="goal" if spot == 0 else None)
            here = [one for one in rows if one["kernel"] == kernel and float(one["hz"]) == hz]
            below.plot([(number + 0.5) / BINS for number in range(BINS)],
                       [100 * middle([float(one["bin%d" % number]) for one in here]) - 100 for number in range(BINS)],
                       label="%g Hz" % hz)
        above.set_xticks(range(len(rates)), ["%g Hz" % hz for hz in rates])
        above.set(title=kernel, ylabel="slowdown, %")
        below.axvspan(*QUIET, color="0.92", lw=0, zorder=0)
        below.set(xlabel="fraction of the time between checkpoints", ylabel="the other twin, % above its mean")
    panes[0, 0].legend(fontsize=7)
    panes[1, 0].legend(fontsize=7)
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, help="measurements of each rate in one run of the twins")
    parser.add_argument("--seconds", type=float, help="length of a window in seconds")
    parser.add_argument("--hz", help="checkpoints per second, separated by commas")
    parser.add_argument("--kernel", default="blackscholes,canneal")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    options.rounds = options.rounds or (1 if options.quick else 6)
    options.seconds = options.seconds or (4.0 if options.quick else 8.0)
    rates = [float(hz) for hz in options.hz.split(",")] if options.hz else ([10] if options.quick else RATES)
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        for kernel in options.kernel.split(","):
            measure(options, rows, scratch, kernel, rates)
    main(work)
    report(rows.rows)
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
