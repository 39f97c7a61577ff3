#!/usr/bin/env python3
"""How much slower does a computation become under continuous checkpoints, told from the noise of the machine?

Windows with and without checkpoints that follow one another differ by 5 % and more on a machine that others share,
whatever their length. So two equal subjects run on one processor, which they change every few milliseconds: what the
machine does meets both. One has checkpoints, then the other, which cancels what makes them unequal. Rates count per
second of the subject's own processor time, of which each has half.

  tracking      processor time for a piece of work, of the twin with checkpoints by the other's, less 1: faults on
                first writes, caches; the geometric mean of both turns
  pauses        the share of time for which it stands, with the other one stopped and the processor to itself
  interference  what the checkpointing beside them costs any program there, by memory and caches: processor time for a
                piece of the twin *without* checkpoints, over a whole period by that in its quiet part (QUIET), less 1.
                Twice that, since a subject that is alone has twice as many checkpoints a second
  total         1 + tracking + pauses + interference

The subjects, their checks and the goals are those of continuous_slowdown.py.
"""
import bisect
import math
import os
import signal

from continuous_slowdown import GOALS, KERNELS, by_thread, piece
from lib.harness import (Rows, Subject, arguments, main, middle, plotter, processors, read_rows, save, spread,
                         with_checkpoints)

QUESTION = "continuous_twins"
# At higher rates hardly anything is quiet.
RATES = [1, 10, 25]
# Shares of the time between two checkpoints after the first: what is done for that one is over, the next not begun.
QUIET = (0.45, 0.8)
BINS = 20
ALONE_S = 3.0
COLUMNS = ["kernel", "hz", "round", "twin", "seconds", "checkpoints", "ratio", "pauses", "alone_hz", "interference",
           "piece_ms_without", "driver_cpu", "pages_each", *["bin%d" % number for number in range(BINS)]]


def profile(record, window):
    """Processor time for a piece by the time since the last checkpoint, BINS means by the mean of all, of a single
    thread; and what the whole takes more than the quiet part. NaN where nothing was done."""
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
    # Whatever the placement: the twins compete for one processor.
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
    """Of each round: tracking, pauses, interference and their total."""
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
                       label="total, least to most" if spot == 0 else None)
            if hz in GOALS[kernel]:
                above.plot([spot - 0.35, spot + 0.35], [100 * GOALS[kernel][hz] - 100] * 2, color="crimson", lw=1.5,
                           zorder=4, label="goal" if spot == 0 else None)
            here = [one for one in rows if one["kernel"] == kernel and float(one["hz"]) == hz]
            below.plot([(number + 0.5) / BINS for number in range(BINS)],
                       [100 * middle([float(one["bin%d" % number]) for one in here]) - 100 for number in range(BINS)],
                       label="%g Hz" % hz)
        above.set_xticks(range(len(rates)), ["%g Hz" % hz for hz in rates])
        above.set(title=kernel, ylabel="slow-down, %")
        below.axvspan(*QUIET, color="0.92", lw=0, zorder=0)
        below.set(xlabel="share of the time to the next checkpoint", ylabel="the other twin, % over its mean")
    panes[0, 0].legend(fontsize=7)
    panes[1, 0].legend(fontsize=7)
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, help="how often each rate is measured in a life")
    parser.add_argument("--seconds", type=float, help="length of a window")
    parser.add_argument("--hz", help="rates, with commas between")
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
