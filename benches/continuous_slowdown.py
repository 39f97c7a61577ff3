#!/usr/bin/env python3
"""How much slower does a computation become under continuous checkpoints? Which part is tracking, which part pauses?

Tracking finds the written pages: the first write to a page after a checkpoint can cause a page fault. A pause is the
time in which all threads are stopped for a checkpoint. There are four computations (`kernels`), and each checks its own
results: blackscholes (reads much, writes little), canneal (scattered writes in a large heap), 13 queens, and products
of matrices of 200 by 200. In one run of a kernel, windows without and with checkpoints alternate. In a window, the
bench measures the time for a piece of work. A window with checkpoints is compared with the mean of the windows before
and after it.

  wall      wall time for a piece of work, divided by the same without checkpoints
  tracking  processor time of the threads of the kernel for a piece of work, divided by the same without checkpoints,
            minus 1. It contains page faults and the effect on caches.
  pauses    sum of the pauses that undying reports, divided by the rest of the window
  total     1 + tracking + pauses. Unlike `wall`, it does not contain the time in which other programs ran.
  floor     wall and processor time of a window without checkpoints, divided by those of the window without checkpoints
            before it. This is the noise.

The plot shows the goals of the design as lines. The crosses are published values of a system with a modified kernel.
They were measured on another machine, so only ratios can be compared.
"""
import sys

from lib.harness import (Rows, Subject, arguments, main, middle, plotter, processors, read_rows, save, spread,
                         with_checkpoints, without)

QUESTION = "continuous_slowdown"
KERNELS = {"blackscholes": {"options": 10000000}, "canneal": {"mib": 800}, "queens": {}, "matrix": {}}
RATES = [0.1, 0.2, 0.5, 1, 10, 25, 50, 100]
COLUMNS = ["kernel", "threads", "hz", "round", "seconds", "checkpoints", "achieved_hz", "pieces", "wall", "tracking",
           "pauses", "total", "floor_wall", "floor_cpu", "piece_ms_without", "pages_each", "written", "driver_cpu",
           "peak_anon_mib"]
GOALS = {"blackscholes": {1: 1.01, 10: 1.01, 25: 1.02, 50: 1.03}, "canneal": {1: 1.01, 10: 1.03, 25: 1.05, 50: 1.08},
         # Half of the published overheads at these rates (one checkpoint every 10 s, 5 s, 2 s, or 10 ms).
         "queens": {0.1: 1.0119, 0.2: 1.0139, 0.5: 1.0168}, "matrix": {0.1: 1.001, 0.2: 1.001, 100: 1.005}}
PUBLISHED = {("blackscholes", 1): {1: 1.016, 10: 1.031, 25: 1.037, 50: 1.032},
             ("blackscholes", 2): {1: 1.017, 10: 1.035, 25: 1.035, 50: 1.059},
             ("canneal", 1): {1: 1.020, 10: 1.090, 25: 1.119, 50: 1.100},
             ("canneal", 2): {1: 1.029, 10: 1.046, 25: 1.066, 50: 1.104},
             ("queens", 1): {0.1: 1.0239, 0.2: 1.0278, 0.5: 1.0337},
             ("matrix", 1): {0.1: 1.0020, 0.2: 1.0021, 100: 1.01}}


def by_thread(record):
    """Splits a record into one list of pairs for each thread. A pair of zeros precedes the pairs of a thread."""
    threads = []
    for pair in record:
        if pair == (0, 0):
            threads.append([])
        else:
            threads[-1].append(pair)
    return threads


def piece(threads, window):
    """Returns the mean wall time and processor time of a piece of work in a window, in ns, and the number of pieces.

    The pieces of all threads are counted.
    """
    walls, times, count = 0, 0, 0
    for done in threads:
        inside = [pair for pair in done if window.begin <= pair[0] < window.end]
        if len(inside) > 1:
            walls += inside[-1][0] - inside[0][0]
            times += inside[-1][1] - inside[0][1]
            count += len(inside) - 1
    if not count:
        raise RuntimeError("no thread has completed a piece of work in a window of %.1f s" % window.seconds)
    return walls / count, times / count, count


def length_s(hz, options):
    return options.seconds or max(3.0 if options.quick else 8.0, 3.0 / hz)


def rows_of(kernel, threads, windows, record):
    done = by_thread(record)
    pieces = [piece(done, window) for _, window in windows]
    for index, (turn, window) in enumerate(windows):
        if index % 2 == 0:
            continue
        wall, cpu, count = pieces[index]
        (wall_before, cpu_before, _), (wall_after, cpu_after, _) = pieces[index - 1], pieces[index + 1]
        stood = window.done.stood_s()
        tracking = 2 * cpu / (cpu_before + cpu_after) - 1
        pauses = stood / (window.seconds - stood)
        yield dict(kernel=kernel, threads=threads, hz=window.hz, round=turn, seconds=window.seconds,
                   checkpoints=window.done.count, achieved_hz=window.achieved_hz, pieces=count,
                   wall=2 * wall / (wall_before + wall_after), tracking=tracking, pauses=pauses,
                   total=1 + tracking + pauses, floor_wall=wall_after / wall_before, floor_cpu=cpu_after / cpu_before,
                   piece_ms_without=(cpu_before + cpu_after) / 2e6, written=window.written,
                   pages_each=window.done.pages() / max(1, window.done.count),
                   driver_cpu=window.driver_cpu, peak_anon_mib=window.peak["anon_mib"])


def measure(options, rows, scratch, kernel, threads, rates):
    subject_cpus, driver_cpus, _ = processors(options, threads)
    parameters = dict(KERNELS[kernel], threads=threads)
    if options.quick and kernel == "canneal":
        parameters["mib"] = 256
    subject = Subject(scratch, kernel, parameters, subject_cpus, options.nice)
    windows = []
    try:
        for turn in range(options.rounds):
            for hz in rates:
                seconds = length_s(hz, options)
                windows.append((turn, without(hz, seconds)))
                windows.append((turn, with_checkpoints(options, subject.pid, hz, seconds, scratch, driver_cpus)))
        windows.append((turn, without(hz, length_s(rates[-1], options))))
        record = subject.stop()
    except BaseException:
        subject.kill()
        raise
    added = list(rows_of(kernel, threads, windows, record))
    for one in added:
        rows.add(**one)
    for hz in rates:
        column = lambda name: [one[name] for one in added if one["hz"] == hz]
        print("%-12s %d threads %5g Hz achieved %6.2f | wall %s tracking %s pauses %s total %s" % (
            kernel, threads, hz, middle(column("achieved_hz")), *(spread(column(name)) for name in
                                                                    ("wall", "tracking", "pauses", "total"))))
    floors = [abs(one["floor_cpu"] - 1) for one in added], [abs(one["floor_wall"] - 1) for one in added]
    print("%-12s %d threads noise: processor time %s, wall %s" % (kernel, threads, *map(spread, floors)), flush=True)


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    cases = sorted({(one["kernel"], int(one["threads"])) for one in rows}, key=lambda c: (list(KERNELS).index(c[0]), c[1]))
    columns = min(2, len(cases))
    figure, panes = plot.subplots(-(-len(cases) // columns), columns, squeeze=False, layout="constrained",
                                  figsize=(5.2 * columns, 2.9 * -(-len(cases) // columns)))
    for pane in panes.flat[len(cases):]:
        pane.axis("off")
    for pane, (kernel, threads) in zip(panes.flat, cases):
        here = [one for one in rows if one["kernel"] == kernel and int(one["threads"]) == threads]
        rates = sorted({float(one["hz"]) for one in here})
        column = lambda name, hz: [float(one[name]) for one in here if float(one["hz"]) == hz]
        percent = lambda name, hz: 100 * middle(column(name, hz))
        spots = range(len(rates))
        tracking = [percent("tracking", hz) for hz in rates]
        pane.bar(spots, tracking, 0.55, color="#4c78a8", label="tracking", zorder=2)
        pane.bar(spots, [percent("pauses", hz) for hz in rates], 0.55, bottom=[max(0, one) for one in tracking],
                 color="#f58518", label="pauses", zorder=2)
        for spot, hz in zip(spots, rates):
            totals = [100 * one - 100 for one in column("total", hz)]
            pane.plot([spot, spot], [min(totals), max(totals)], color="black", lw=1, zorder=3)
            goal, seen = GOALS[kernel].get(hz), PUBLISHED.get((kernel, threads), {}).get(hz)
            if goal:
                pane.plot([spot - 0.35, spot + 0.35], [100 * goal - 100] * 2, color="crimson", lw=1.5, zorder=4)
            if seen:
                pane.plot(spot, 100 * seen - 100, "x", color="black", ms=6, zorder=4)
        noise = 100 * middle([abs(float(one["floor_cpu"]) - 1) for one in here])
        pane.axhspan(-noise, noise, color="0.9", lw=0, zorder=0)
        pane.set_xticks(list(spots), ["%g s" % (1 / hz) if hz < 1 else "%g Hz" % hz for hz in rates])
        pane.set(title="%s, %d thread%s" % (kernel, threads, "s"[:threads > 1]), ylabel="slowdown, %")
    panes[0, 0].plot([], [], color="crimson", label="goal")
    panes[0, 0].plot([], [], "x", color="black", label="published, modified kernel")
    panes[0, 0].plot([], [], color="black", lw=1, label="total, minimum to maximum")
    panes[0, 0].fill_between([], [], color="0.9", label="noise (median)")
    figure.legend(*panes[0, 0].get_legend_handles_labels(), ncols=3 * columns, loc="outside upper center", fontsize=8)
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, help="measurements of each rate in one run of a kernel")
    parser.add_argument("--seconds", type=float, help="length of a window in seconds")
    parser.add_argument("--hz", help="checkpoints per second, separated by commas; 0.1 is one every 10 s")
    parser.add_argument("--kernel", default=",".join(KERNELS))
    parser.add_argument("--threads", default=None, help="numbers of threads, separated by commas [1,2]")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    options.rounds = options.rounds or 3
    rates = [float(hz) for hz in options.hz.split(",")] if options.hz else ([10, 100] if options.quick else RATES)
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        for kernel in options.kernel.split(","):
            for threads in (options.threads or ("1" if options.quick else "1,2")).split(","):
                try:
                    measure(options, rows, scratch, kernel, int(threads), rates)
                except RuntimeError as failure:
                    rows.file.write("# failed: %s %s: %s\n" % (kernel, threads, " ".join(str(failure).split())))
                    print("failed: %s: %s" % (kernel, failure), file=sys.stderr, flush=True)
    main(work)
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
