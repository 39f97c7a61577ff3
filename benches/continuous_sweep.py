#!/usr/bin/env python3
"""How does the duration of a checkpoint depend on the number and size of memory regions, and on the share of changes?

A dataspace is a separate memory mapping. The bench repeats the measurement of a published modular checkpointing system.
That system compares stop-and-copy (`base`) with incremental checkpoints (`inc`), for several granularities and copying
threads. Here, there are 1 to 100 dataspaces of 4 KiB or more, with at most 4 GiB in total. A tracker (code that finds
written pages) is attached, and takes a first checkpoint. Before the second and the third checkpoint, the subject (the
measured program) rewrites a share of its pages. The trackers `auto` and `full` take turns on one subject. `full` copies
all pages each time.

  pause_ms    time in which the subject is stopped. At the first checkpoint, it is also stopped for `arming_ms`, while
              the tracker is attached.
  took_ms     time for the scan, the copies before the pause, and the pause
  marshal_ms  time from then on until the checkpoint is durable: checksums, index, records, write, sync. The subject
              runs in this time.
  total_ms    time from the request until the checkpoint is durable

All rows count, also the first rows with cold caches. At the end, the number of failures is printed and written.
The published system failed in up to 5 % of its runs.
"""
import os
import signal
import sys

from lib.harness import (PHASES, Rows, Subject, arguments, attach, main, middle, plotter, processors, read_rows, save,
                         spread, wait_for)

QUESTION = "continuous_sweep"
SIZES_KIB = [4, 64, 1024, 10240, 65536, 1 << 20, 4 << 20]
QUICK_SIZES_KIB = [4, 1024, 10240, 262144]
COUNTS = [1, 10, 100]
PERCENTS = [100, 10]
TRACKERS = ["auto", "full"]
KIB_MAX = 4 << 20
STEPS = ["total", "took", "pause", "arming", *PHASES, "hash", "write", "commit"]
COLUMNS = ["kib", "count", "percent", "granularity", "copiers", "tracker", "round", "checkpoint",
           *(step + "_ms" for step in STEPS), "marshal_ms", "precopied", "residual", "written"]


def rewritten(subject, lines):
    """Sends SIGUSR1, and waits until the subject has rewritten its share of the pages."""
    os.kill(subject.pid, signal.SIGUSR1)
    wait_for(lambda: subject.words().count("written\n") > lines, "the subject to write")


def one_life(options, scratch, subject, tracker, cpus, lines):
    """Attaches a driver, takes three checkpoints, and detaches the driver. Yields name and figures of each checkpoint.

    Before the second and the third checkpoint, the subject rewrites its share of the pages.
    """
    driver = attach(options, subject.pid, 0, scratch, cpus, tracker=tracker)
    try:
        yield "first", driver.take_one()
        for name in ("second", "third"):
            rewritten(subject, lines)
            lines += 1
            yield name, driver.take_one()
    except BaseException:
        driver.process.kill()
        driver.process.wait()
        raise
    driver.detach()


def measure(options, rows, scratch, kib, count, percent):
    subject_cpus, driver_cpus, _ = processors(options)
    subject = Subject(scratch, "dataspaces", {"kib": kib, "count": count, "percent": percent}, subject_cpus,
                      options.nice)
    failures, lines, first_row = 0, 0, len(rows.rows)
    try:
        for turn in range(options.rounds):
            for tracker in TRACKERS:
                try:
                    for name, figures in one_life(options, scratch, subject, tracker, driver_cpus, lines):
                        lines = subject.words().count("written\n")
                        rows.add(kib=kib, count=count, percent=percent, granularity=1, copiers=1, tracker=tracker,
                                 round=turn, checkpoint=name, precopied=figures["precopied"],
                                 **{step + "_ms": figures[step] / 1e6 for step in STEPS},
                                 marshal_ms=(figures["total"] - figures["took"]) / 1e6, residual=figures["residual"],
                                 written=figures["written"])
                except RuntimeError as failure:
                    failures += 1
                    rows.file.write("# failed: %d KiB x %d, %s: %s\n" % (kib, count, tracker, " ".join(str(failure).split())))
                    print("failed: %s" % failure, file=sys.stderr, flush=True)
        subject.stop()
    except BaseException:
        subject.kill()
        raise
    for tracker in TRACKERS:
        of = lambda name, column: [float(one[column]) for one in rows.rows[first_row:]
                                   if one["tracker"] == tracker and one["checkpoint"] == name]
        print("%8d KiB x %3d, %3d %% rewritten, %4s | first: total ms %s pause %s | second: total %s pause %s "
              "marshal/took %.2f" % (kib, count, percent, tracker, spread(of("first", "total_ms")),
                                     spread(of("first", "pause_ms")), spread(of("second", "total_ms")),
                                     spread(of("second", "pause_ms")),
                                     middle(of("second", "marshal_ms")) / middle(of("second", "took_ms"))), flush=True)
    return failures


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    counts = sorted({int(one["count"]) for one in rows})
    figure, panes = plot.subplots(2, len(counts), figsize=(3.8 * len(counts), 6.4), squeeze=False, sharex=True,
                                  sharey="row", layout="constrained")
    looks = {("auto", "first"): ("#4c78a8", "--"), ("auto", "second"): ("#4c78a8", "-"),
             ("full", "first"): ("#f58518", "--"), ("full", "second"): ("#f58518", "-")}
    names = {"auto": "incremental", "full": "stop and copy all"}
    percent = max(int(one["percent"]) for one in rows)
    least = min(int(one["percent"]) for one in rows)
    for column, count in enumerate(counts):
        for (tracker, name), (colour, line) in looks.items():
            for share, width in ((percent, 1.6), (least, 0.8)):
                if name == "first" and share != percent:
                    continue
                here = [one for one in rows if int(one["count"]) == count and one["tracker"] == tracker and
                        one["checkpoint"] == name and int(one["percent"]) == share]
                sizes = sorted({int(one["kib"]) for one in here})
                of = lambda what: [middle([float(one[what]) for one in here if int(one["kib"]) == kib]) for kib in sizes]
                label = "%s, %s" % (names[tracker], name if name == "first" else "second (%d %%)" % share)
                for pane, what in ((panes[0, column], "total_ms"), (panes[1, column], "pause_ms")):
                    pane.plot([kib / 1024 for kib in sizes], of(what), line, marker="o", ms=3, color=colour, lw=width,
                              label=label)
        panes[0, column].set(title="%d dataspace%s" % (count, "s"[:count > 1]), xscale="log", yscale="log")
        panes[1, column].set(xscale="log", yscale="log", xlabel="size of each dataspace, MiB")
    panes[0, 0].set_ylabel("from request to durable, ms")
    panes[1, 0].set_ylabel("pause, ms")
    figure.legend(*panes[0, 0].get_legend_handles_labels(), ncols=3, loc="outside lower center", fontsize=8)
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--kib", help="sizes of a dataspace in KiB, separated by commas")
    parser.add_argument("--count", help="numbers of dataspaces, separated by commas")
    parser.add_argument("--percent", help="percentages of rewritten pages, separated by commas")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    options.driver = "engine"
    options.rounds = options.rounds or (3 if options.quick else 10)
    pick = lambda given, otherwise: [int(one) for one in given.split(",")] if given else otherwise
    sizes = pick(options.kib, QUICK_SIZES_KIB if options.quick else SIZES_KIB)
    rows, failures = Rows(options, QUESTION, COLUMNS), []
    rows.file.write("# granularity is 1 page and copiers is 1 in all rows: neither can be chosen yet\n")

    def work(scratch):
        for kib in sizes:
            for count in pick(options.count, [1, 100] if options.quick else COUNTS):
                for percent in pick(options.percent, PERCENTS):
                    if kib * count <= (KIB_MAX // 4 if options.quick else KIB_MAX):
                        failures.append(measure(options, rows, scratch, kib, count, percent))
    main(work)
    said = "failures: %d in %d checkpoints" % (sum(failures), len(rows.rows))
    rows.file.write("# %s\n" % said)
    print(said)
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
