#!/usr/bin/env python3
"""How many bytes does undying write for each changed byte of a program? Is the checkpoint rate achieved?

The bench also measures the memory of undying.

An epoch is the time between two checkpoints. The subject (the measured program) writes pages at a constant rate. With
the order `walk`, it writes to its pages one after the other, so that all dirty pages of an epoch are different. With
`random`, the number of different dirty pages is computed from the probability of repeated writes. Rows with the rate 0
show what a checkpoint of an idle program costs.

  rate_kept      achieved_hz / hz
  dirtied_mib    size of all dirty pages of the window
  written_mib    bytes that the kernel counts for the process of undying (write_bytes in /proc/PID/io)
  per_byte       written_mib / dirtied_mib
  bytes_each     bytes written per checkpoint
  moved_pages    pages that compaction has moved. Compaction begins when the log is larger than twice its live pages
                 plus three segments. A window without moved pages was too short to measure compaction.
  peak_anon_mib  anonymous memory of undying, without its code and files
  allowed_mib    limit for peak_anon_mib: 64 MiB, and twice the dirty pages of an epoch
"""
import sys

from lib.harness import (MIB, Rows, Subject, arguments, main, middle, plotter, processors, quantile, read_rows, save,
                         spread, with_checkpoints)

QUESTION = "continuous_bytes"
CASES = [(16, 100, "walk"), (64, 1000, "walk"), (64, 10000, "walk"), (64, 10000, "random"), (256, 10000, "random"),
         (1024, 0, "walk"), (1024, 1000, "walk"), (1024, 10000, "walk"), (1024, 10000, "random"),
         (1024, 100000, "walk"), (1024, 100000, "random"), (4096, 10000, "random"), (4096, 100000, "random")]
QUICK_CASES = [(64, 1000, "walk"), (64, 10000, "random"), (1024, 0, "walk"), (1024, 10000, "walk"),
               (1024, 100000, "walk")]
RATES = [1, 10, 25, 50, 100]
COLUMNS = ["mib", "rate", "order", "hz", "round", "seconds", "checkpoints", "achieved_hz", "rate_kept", "dirtied_mib",
           "copied_mib", "written_mib", "per_byte", "bytes_each", "moved_pages", "durable_ms_p50", "durable_ms_p99",
           "behind", "failed", "driver_cpu", "peak_rss_mib", "peak_anon_mib", "allowed_mib"]
PAGE = 4096


def different(pages, writes, order):
    """Returns the expected number of different pages among `writes` writes to `pages` pages."""
    return writes if order == "walk" else pages * (1 - (1 - 1 / pages) ** writes)


def row(mib, rate, order, turn, window):
    done, count = window.done, window.done.count
    epochs = max(1, count)
    dirtied = different(mib * MIB / PAGE, rate * window.seconds / epochs, order) * epochs * PAGE
    durable = [one / 1e6 for one in done.each("commit")]
    return dict(mib=mib, rate=rate, order=order, hz=window.hz, round=turn, seconds=window.seconds, checkpoints=count,
                achieved_hz=window.achieved_hz, rate_kept=window.achieved_hz / window.hz, dirtied_mib=dirtied / MIB,
                copied_mib=done.pages() * PAGE / MIB, written_mib=window.written / MIB,
                per_byte=window.written / dirtied if dirtied else "", bytes_each=window.written / max(1, count),
                moved_pages=sum(done.each("moved")),
                durable_ms_p50=quantile(durable, 0.5), durable_ms_p99=quantile(durable, 0.99),
                behind=window.done.behind, failed=window.done.failed,
                driver_cpu=window.driver_cpu, peak_rss_mib=window.peak["rss_mib"],
                peak_anon_mib=window.peak["anon_mib"], allowed_mib=64 + 2 * rate / window.hz * PAGE / MIB)


def measure(options, rows, scratch, mib, rate, order, rates):
    subject_cpus, driver_cpus, _ = processors(options)
    subject = Subject(scratch, "gapclock", {"mib": mib, "rate": rate, "order": order, "least_ns": 10 ** 9},
                      subject_cpus, options.nice)
    first = len(rows.rows)
    try:
        for turn in range(options.rounds):
            for hz in rates:
                if order == "walk" and rate / hz > mib * MIB / PAGE:
                    # The subject would write more often than it has pages, so the dirty pages would not be different.
                    continue
                # Long enough for compaction, but at most 120 s for that purpose.
                cleaning = min(120.0, 3 * mib * MIB / PAGE / rate) if rate else 0.0
                seconds = options.seconds or (10.0 if options.quick else max(30.0, 10 / hz, cleaning))
                window = with_checkpoints(options, subject.pid, hz, seconds, scratch, driver_cpus)
                rows.add(**row(mib, rate, order, turn, window))
        subject.stop()
    except BaseException:
        subject.kill()
        raise
    for hz in rates:
        of = lambda name: [float(one[name]) for one in rows.rows[first:] if float(one["hz"]) == hz and one[name] != ""]
        if of("hz"):
            print("%5d MiB %6d pages/s %-6s %4g Hz | rate kept %s | written by dirtied %s | %.0f KiB each | "
                  "durable p99 %.1f ms | memory %.0f MiB anonymous, %.0f allowed" % (
                      mib, rate, order, hz, spread(of("rate_kept")), spread(of("per_byte")), middle(of("bytes_each")) / 1024,
                      middle(of("durable_ms_p99")), max(of("peak_anon_mib")), max(of("allowed_mib"))), flush=True)


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    figure, panes = plot.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    cases = list(dict.fromkeys((int(one["mib"]), int(one["rate"]), one["order"]) for one in rows))
    colours = plot.get_cmap("viridis")
    for index, (mib, rate, order) in enumerate(cases):
        here = [one for one in rows if (int(one["mib"]), int(one["rate"]), one["order"]) == (mib, rate, order)]
        rates = sorted({float(one["hz"]) for one in here})
        of = lambda name: [middle([float(one[name]) for one in here if float(one["hz"]) == hz and one[name] != ""])
                           for hz in rates]
        look = dict(marker="o", ms=4, lw=1.2, color=colours(index / max(1, len(cases) - 1) * 0.9))
        panes[0].plot(rates, [hz * kept for hz, kept in zip(rates, of("rate_kept"))],
                      label="%d MiB, %s pages/s%s" % (mib, format(rate, ","), " at random" * (order == "random")), **look)
        if rate:
            panes[1].plot(rates, of("per_byte"), **look)
        panes[2].plot(rates, of("peak_anon_mib"), **look)
        panes[2].plot(rates, of("allowed_mib"), ":", lw=1, color=look["color"])
    panes[0].plot(ends := [min(float(one["hz"]) for one in rows), max(float(one["hz"]) for one in rows)], ends, color="crimson", lw=0.8)
    panes[0].set(title="checkpoints taken per second", xscale="log", yscale="log")
    panes[1].set(title="bytes written per byte dirtied", xscale="log", ylim=(0, None))
    panes[2].set(title="undying's memory, MiB (dotted: allowed)", xscale="log", ylim=(0, None))
    for pane in panes:
        asked = sorted({float(one["hz"]) for one in rows})
        pane.set_xticks(asked, ["%g" % hz for hz in asked])
        pane.minorticks_off()
        pane.set_xlabel("requested checkpoints per second")
    figure.legend(*panes[0].get_legend_handles_labels(), ncols=5, loc="outside lower center", fontsize=8)
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="length of a window in seconds")
    parser.add_argument("--hz", help="checkpoints per second, separated by commas")
    parser.add_argument("--case", action="append", help="MIB,RATE,walk or MIB,RATE,random; can be repeated")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    options.rounds = options.rounds or (1 if options.quick else 3)
    rates = [float(hz) for hz in options.hz.split(",")] if options.hz else ([10, 100] if options.quick else RATES)
    cases = []
    for case in options.case or []:
        mib, rate, order = case.split(",")
        cases.append((int(mib), int(rate), order))
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        for mib, rate, order in cases or (QUICK_CASES if options.quick else CASES):
            try:
                measure(options, rows, scratch, mib, rate, order, rates)
            except RuntimeError as failure:
                rows.file.write("# failed: %d MiB %d: %s\n" % (mib, rate, " ".join(str(failure).split())))
                print("failed: %s" % failure, file=sys.stderr, flush=True)
    main(work)
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
