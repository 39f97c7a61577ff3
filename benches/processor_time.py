#!/usr/bin/env python3
"""How much processor time does the guardian need for each page that the subject dirties, compared with another build?

The subject (the measured program) writes to random pages at a constant rate. The two builds take checkpoints of the same
process in turns. A window begins after `--settle` seconds, so that compaction has begun.

  cpu_ms_each  processor time of the guardian per checkpoint, in ms
  cpu_us_page  the same per write of the subject, in us
  pause_us_*   percentiles of the latest pauses
"""
import argparse
import os

from lib.harness import Rows, Subject, arguments, main, middle, processors, spread, with_checkpoints

QUESTION = "processor_time"
CASES = [(64, 40000), (256, 40000), (1024, 40000)]
QUICK_CASES = [(256, 40000)]
COLUMNS = ["mib", "rate", "hz", "round", "build", "seconds", "checkpoints", "cpu_ms_each", "cpu_us_page", "pause_us_p50",
           "pause_us_p99"]


def window(options, pid, scratch, cpus, binary, words):
    of_build = argparse.Namespace(**dict(vars(options), undying=binary, driver="run"))
    return with_checkpoints(of_build, pid, options.hz, options.seconds, scratch, cpus, settle=options.settle, words=words)


def measure(options, rows, scratch, mib, rate):
    cpus = processors(options)
    subject = Subject(scratch, "steady", {"mib": mib, "rate": rate}, cpus[0], options.nice)
    each = {"old": [], "new": []}
    try:
        for turn in range(options.rounds):
            for build, binary, words in (("old", options.old, options.old_words), ("new", options.undying, options.words)):
                done = window(options, subject.pid, scratch, cpus[1], binary, words.split())
                cpu_s, count = done.driver_cpu * done.seconds, max(1, done.done.count)
                each[build].append(cpu_s / count)
                rows.add(mib=mib, rate=rate, hz=options.hz, round=turn, build=build, seconds=done.seconds,
                         checkpoints=done.done.count, cpu_ms_each=cpu_s / count * 1e3,
                         cpu_us_page=cpu_s / (rate * done.seconds) * 1e6, pause_us_p50=done.done.pause_us(0.5),
                         pause_us_p99=done.done.pause_us(0.99))
        subject.stop()
    except BaseException:
        subject.kill()
        raise
    ratios = [new / old for old, new in zip(each["old"], each["new"])]
    print("%5d MiB, %d pages/s: ratio of the processor times %s" % (mib, rate, spread(ratios)), flush=True)
    return middle(ratios)


def run(scratch):
    parser = arguments(__doc__, driver="run")
    parser.add_argument("--old", type=os.path.abspath,
                        help="the program undying of the other build; without it, the ratio shows the noise")
    parser.add_argument("--old-words", default="", help="further options of `undying run` for the other build")
    parser.add_argument("--words", default="--cost-max off", help="further options of `undying run` [--cost-max off]")
    parser.add_argument("--hz", type=float, default=20, help="checkpoints per second [20]")
    parser.add_argument("--rounds", type=int, default=4, help="windows of each build [4]")
    parser.add_argument("--seconds", type=float, default=15, help="duration of a window [15]")
    parser.add_argument("--settle", type=float, default=15, help="time before a window [15]")
    options = parser.parse_args()
    options.old = options.old or options.undying
    rows = Rows(options, QUESTION, COLUMNS)
    for case in QUICK_CASES if options.quick else CASES:
        measure(options, rows, scratch, *case)
    rows.close()


main(run)
