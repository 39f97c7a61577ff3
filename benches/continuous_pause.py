#!/usr/bin/env python3
"""For how long do continuous checkpoints stop a program, measured by the program itself?

A thread of the subject (the measured program) reads the clock in a loop, and records gaps between two readings. A
period is the time between two checkpoints. A stall is the longest gap that begins in a period. Windows with and without
checkpoints alternate in one run of the subject. The windows without checkpoints show the noise.

The default point is 1 GiB, 10,000 written pages per second, 1 thread and 100 mappings (`areas`). The bench varies one
of these values at a time: resident memory, written pages per second, threads, mappings. Each point is measured at all
rates. With --writer 1, an additional thread writes the pages. A checkpoint then stops two running threads.

Each row is one window. The subject has measured `stall_*`, and undying has reported `pause_*`.
"""
import sys

from lib.harness import (PHASES, Rows, Subject, arguments, main, middle, plotter, processors, quantile, read_rows, save,
                         with_checkpoints, without)

QUESTION = "continuous_pause"
CENTRE = {"mib": 1024, "rate": 10000, "threads": 1, "areas": 100, "writer": 0}
AXES = {"mib": [16, 64, 256, 1024, 4096], "rate": [100, 1000, 10000, 100000], "threads": [1, 4, 32],
        "areas": [100, 10000]}
QUICK_AXES = {"mib": [16, 1024], "rate": [100, 10000, 100000], "threads": [1, 32], "areas": [100, 10000]}
RATES = [1, 10, 25, 50, 100]
LABELS = {"mib": "resident memory, MiB", "rate": "pages written per second", "threads": "threads", "areas": "mappings",
          "writer": "additional thread that writes"}
SHARES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
COLUMNS = [*CENTRE, "hz", "with", "round", "seconds", "checkpoints", "achieved_hz",
           *("stall_us_" + name for name in SHARES), *("pause_us_" + name for name in SHARES),
           *(phase + "_us_p50" for phase in PHASES), "residual_p50", "pages_each", "dirtied",
           "written", "behind", "failed", "driver_cpu", "peak_rss_mib", "peak_anon_mib"]
GOAL_US = 1000


def stalls(record, window):
    """Returns the longest gap that began in each period, in µs.

    A window with checkpoints has one period for each checkpoint. A window without checkpoints has as many periods as
    checkpoints would have been requested. A period without a recorded gap has the value 0.
    """
    periods = max(1, window.done.count or round(window.seconds * window.hz))
    longest = [0] * periods
    for began, length in record:
        index = int((began - window.begin) / 1e9 / window.seconds * periods)
        if window.begin <= began and 0 <= index < periods:
            longest[index] = max(longest[index], length)
    return [length / 1000 for length in longest]


def row(point, turn, window, record):
    seen, done = stalls(record, window), window.done
    found = {"stall_us_" + name: quantile(seen, share) for name, share in SHARES.items()}
    if window.has_checkpoints:
        found.update({"pause_us_" + name: done.pause_us(share) for name, share in SHARES.items()})
        found.update({phase + "_us_p50": done.figure(phase) / 1000 for phase in PHASES},
                     residual_p50=done.figure("residual"), pages_each=done.pages() / max(1, done.count))
    return dict(point, hz=window.hz, **{"with": int(window.has_checkpoints)}, round=turn, seconds=window.seconds,
                checkpoints=done.count, achieved_hz=window.achieved_hz, written=window.written,
                behind=window.done.behind, failed=window.done.failed,
                driver_cpu=window.driver_cpu, peak_rss_mib=window.peak["rss_mib"],
                peak_anon_mib=window.peak["anon_mib"], dirtied=round(point["rate"] * window.seconds), **found)


def length_s(hz, quick):
    return max(4.0, 20 / hz) if quick else max(15.0, 100 / hz)


def measure(options, rows, scratch, point, rates):
    subject_cpus, driver_cpus, _ = processors(options)
    subject = Subject(scratch, "gapclock", point, subject_cpus, options.nice)
    windows = []
    try:
        for turn in range(options.rounds):
            for hz in rates:
                seconds = length_s(hz, options.quick)
                windows.append((turn, without(hz, seconds)))
                windows.append((turn, with_checkpoints(options, subject.pid, hz, seconds, scratch, driver_cpus)))
        record = subject.stop()
    except BaseException:
        subject.kill()
        raise
    for turn, window in windows:
        rows.add(**row(point, turn, window, record))
    tell(rows.rows[-len(windows):], point)


def tell(rows, point):
    for hz in dict.fromkeys(one["hz"] for one in rows):
        of = lambda has, name: middle([float(one[name]) for one in rows if one["hz"] == hz and one["with"] == has])
        print("%(mib)5d MiB %(rate)6d pages/s %(threads)2d threads %(areas)5d mappings, writer %(writer)d" % point,
              "%5s Hz" % hz,
              "achieved %6.2f" % of("1", "achieved_hz"),
              "| stall us p50 %6.0f p99 %6.0f max %6.0f" % tuple(of("1", "stall_us_" + s) for s in ("p50", "p99", "max")),
              "| without p50 %5.0f p99 %6.0f" % tuple(of("0", "stall_us_" + s) for s in ("p50", "p99")),
              "| pause us p50 %6.0f p99 %6.0f" % tuple(of("1", "pause_us_" + s) for s in ("p50", "p99")), flush=True)


def points(axes):
    for axis, values in axes.items():
        for value in values:
            yield dict(CENTRE, **{axis: value})


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    figure, panes = plot.subplots(2, 2, figsize=(10, 7.2), sharey=True, layout="constrained")
    colours = plot.get_cmap("viridis")
    for pane, axis in zip(panes.flat, AXES):
        here = [one for one in rows if all(float(one.get(name, CENTRE[name])) == CENTRE[name] for name in CENTRE if name != axis)]
        rates = sorted({float(one["hz"]) for one in here})
        values = sorted({float(one[axis]) for one in here})
        pick = lambda hz, value, has, name: middle([float(one[name]) for one in here if float(one["hz"]) == hz and
                                                    float(one[axis]) == value and one["with"] == has])
        for index, hz in enumerate(rates):
            colour = colours(index / max(1, len(rates) - 1) * 0.9)
            pane.plot(values, [pick(hz, v, "1", "stall_us_p50") for v in values], "o-", color=colour, ms=4,
                      label="%g Hz" % hz)
            pane.plot(values, [pick(hz, v, "1", "stall_us_p99") for v in values], "^--", color=colour, ms=4, lw=1)
            pane.plot(values, [pick(hz, v, "0", "stall_us_p99") for v in values], ":", color=colour, lw=1)
        pane.axhline(GOAL_US, color="crimson", lw=0.8)
        pane.set(xscale="log", yscale="log", xlabel=LABELS[axis])
        pane.set_xticks(values, ["%g" % value for value in values])
        pane.minorticks_off()
    for pane in panes[:, 0]:
        pane.set_ylabel("stall (longest gap of a period), µs")
    for style, label in (("k-o", "p50"), ("k--^", "p99"), ("k:", "p99 without checkpoints")):
        panes[0, 0].plot([], [], style, lw=1, ms=4, label=label)
    panes[0, 0].plot([], [], color="crimson", lw=0.8, label="goal for p99")
    figure.legend(*panes[0, 0].get_legend_handles_labels(), ncols=9, loc="outside lower center", fontsize=8)
    figure.suptitle("Stalls of the subject (default point: 1 GiB, 10,000 pages/s, 1 thread, 100 mappings)")
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, help="measurements of each rate in one run of the subject")
    parser.add_argument("--hz", help="checkpoints per second, separated by commas")
    for axis in CENTRE:
        parser.add_argument("--" + axis, help="vary only this value; values separated by commas, "
                            "all other values as in the default point")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    options.rounds = options.rounds or (1 if options.quick else 3)
    axes = QUICK_AXES if options.quick else AXES
    chosen = {axis: [int(v) for v in getattr(options, axis).split(",")] for axis in CENTRE if getattr(options, axis)}
    rates = [float(hz) for hz in options.hz.split(",")] if options.hz else ([10, 100] if options.quick else RATES)
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        for point in {tuple(point.items()): point for point in points(chosen or axes)}.values():
            try:
                measure(options, rows, scratch, point, rates)
            except RuntimeError as failure:
                rows.file.write("# failed: %s: %s\n" % (point, " ".join(str(failure).split())))
                print("failed: %s: %s" % (point, failure), file=sys.stderr, flush=True)
    main(work)
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
