#!/usr/bin/env python3
"""What is the cost of being a component of `undying up`?

The guardian is the process of `undying up`.

exchange  Two programs exchange messages of 64 bytes as fast as possible, over a Unix socket or over TCP. They run
          without undying, and as two components. With `keep`, they use one connection. With `anew`, they make a new
          connection for each message. Each connect(2) of a component waits for a reply of the guardian. The components
          run without checkpoints (`stateless`). With `keep`, they also run with a checkpoint every second and every
          50 ms.
watch     A computation runs beside a system of eight components, and without this system. The components together
          listen on 0, 20, 200 or 2,000 addresses. The processor time of the guardian is measured too.

A window with `undying` is compared with the mean of the windows without it, before and after. The lines in the plot are
published values of a system with its own kernel. They were measured on another machine, so only ratios can be compared.
"""
import json
import os
import signal
import subprocess
import sys
import time

from lib.harness import (Rows, build, main, middle, on, plotter, processors, read_rows, results, save, spread, wait_for)

QUESTION = "supervision"
COLUMNS = ["part", "transport", "way", "channels", "round", "seconds", "per_s_without", "slowdown", "floor",
           "guardian_cpu"]
WAYS = {"stateless": 'policy = "stateless"', "checkpoints 1 s": 'policy = "checkpointed"\nevery = "1s"',
        "checkpoints 50 ms": 'policy = "checkpointed"\nevery = "50ms"'}
TRANSPORTS = [("unix", "keep"), ("tcp", "keep"), ("unix", "anew"), ("tcp", "anew")]
CHANNELS = [0, 20, 200, 2000]
LISTENERS = 8
PORT = 7977
SETTLE_S = 0.7
# Published slowdowns of the other system. `keep`: messages over one channel. `anew`: each call loses its capability.
PUBLISHED = {"keep": 1.012, "anew": 8.30}
# Published slowdowns when the other system checks 1,852 capabilities at this interval.
PUBLISHED_WATCH = {"each 1 ms": 2.0, "each 20 ms": 1.01}


class Bare:
    """The programs without undying."""

    def __init__(self, commands, environment, cpus):
        self.processes = []
        for words in commands:
            self.processes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                                   stderr=subprocess.DEVNULL, env=environment, start_new_session=True, preexec_fn=on(cpus)))

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


class System:
    """The programs as components of `undying up`."""

    def __init__(self, options, scratch, components, environment, cpus):
        self.store = os.path.join(scratch, "store-%d" % time.monotonic_ns())
        self.options, path = options, os.path.join(scratch, "system.toml")
        text = '[system]\nname = "bench"\nstore = %s\n' % json.dumps(self.store)
        for name, words, keys in components:
            text += "[component.%s]\ncommand = %s\n%s\n" % (name, json.dumps(words), keys)
        with open(path, "w") as file:
            file.write(text)
        self.log = open(os.path.join(scratch, "up.log"), "w")
        self.process = subprocess.Popen([options.undying, "up", path], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, env=environment, start_new_session=True, preexec_fn=on(cpus))
        wait_for(self.is_ready, "the system")

    def is_ready(self):
        if self.process.poll() is not None:
            with open(self.log.name) as log:
                raise RuntimeError("undying up has ended:\n" + log.read())
        said = subprocess.run([self.options.undying, "status", "--store", self.store, "--json"], capture_output=True)
        rows = json.loads(said.stdout or "[]") if said.returncode == 0 else []
        return rows and all(row["component"]["state"] == "ready" for row in rows)

    def cpu_s(self):
        with open("/proc/%d/stat" % self.process.pid) as file:
            fields = file.read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()


def rate(path, begin, end):
    """Returns the exchanges or pieces of work per second, between the first and the last record of a window."""
    with open(path) as file:
        records = [tuple(map(int, line.split())) for line in file if line.endswith("\n") and line.count(" ") == 1]
    inside = [record for record in records if begin <= record[0] <= end]
    if len(inside) < 5:
        raise RuntimeError("only %d records in a window" % len(inside))
    (first, before), (last, after) = inside[0], inside[-1]
    return (after - before) * 1e9 / (last - first)


def window(seconds):
    time.sleep(SETTLE_S)
    begin = time.monotonic_ns()
    time.sleep(seconds)
    return begin, time.monotonic_ns()


def compared(bare, under):
    """Compares each window with undying with the windows before and after it.

    Yields the rate without undying, the slowdown, and the ratio of the rates of both windows without undying (noise).
    """
    for index, rate_under in enumerate(under):
        before, after = bare[index], bare[index + 1]
        yield (before + after) / 2, (before + after) / 2 / rate_under, after / before


def exchange(options, rows, scratch, transport, kind):
    program = build("exchange", scratch)
    own, driver, _ = processors(options)
    environment = dict(os.environ, **({"CPU": str(min(own))} if options.pin else {}))
    address = str(PORT) if transport == "tcp" else os.path.join(scratch, "socket")
    ways = WAYS if kind == "keep" else {"stateless": WAYS["stateless"]}
    record = os.path.join(scratch, "record")
    words = lambda: ([program, "serve", address], [program, kind, address, record])

    def without():
        if os.path.exists(record):
            os.unlink(record)
        bare = Bare(words(), environment, own)
        found = rate(record, *window(options.seconds))
        bare.end()
        return found

    def under(keys):
        os.unlink(record)
        server, client = words()
        components = [("server", server, keys + "\nready = { listen = true }"), ("client", client, keys + '\nneeds = ["server"]')]
        system = System(options, scratch, components, environment, driver)
        cpu, (begin, end) = system.cpu_s(), window(options.seconds)
        used = (system.cpu_s() - cpu) / (options.seconds + SETTLE_S)
        found = rate(record, begin, end)
        system.end()
        return found, used

    for turn in range(options.rounds):
        bare, found = [without()], []
        for keys in ways.values():
            found.append(under(keys))
            bare.append(without())
        for way, (_, used), (per_s, slow, floor) in zip(ways, found, compared(bare, [one[0] for one in found])):
            rows.add(part=kind, transport=transport, way=way, channels=0, round=turn, seconds=options.seconds,
                     per_s_without=per_s, slowdown=slow, floor=floor, guardian_cpu=used)
    tell(rows, lambda one: (one["part"], one["transport"]) == (kind, transport), "way")


def watch(options, rows, scratch):
    program = build("exchange", scratch)
    own, driver, _ = processors(options)
    record = os.path.join(scratch, "work")
    worker = Bare([[program, "work", record]], dict(os.environ), own)
    try:
        for turn in range(options.rounds):
            bare, found = [rate(record, *window(options.seconds))], []
            for channels in CHANNELS:
                components = []
                for index in range(LISTENERS):
                    count = channels // LISTENERS + (index < channels % LISTENERS)
                    ready = "ready = { listen = true }" if count else ""
                    name = "bench-%d-%d" % (os.getpid(), index)
                    components.append(("listener%d" % index, [program, "listen", str(count), name], ready))
                system = System(options, scratch, components, dict(os.environ), driver)
                cpu, (begin, end) = system.cpu_s(), window(options.seconds)
                used = (system.cpu_s() - cpu) / (options.seconds + SETTLE_S)
                found.append((rate(record, begin, end), used))
                system.end()
                bare.append(rate(record, *window(options.seconds)))
            for channels, (_, used), (per_s, slow, floor) in zip(CHANNELS, found, compared(bare, [one[0] for one in found])):
                rows.add(part="watch", transport="", way="stateless", channels=channels, round=turn,
                         seconds=options.seconds, per_s_without=per_s, slowdown=slow, floor=floor, guardian_cpu=used)
    finally:
        worker.end()
    tell(rows, lambda one: one["part"] == "watch", "channels")


def tell(rows, wanted, by):
    found = [one for one in rows.rows if wanted(one)]
    for value in dict.fromkeys(one[by] for one in found):
        column = lambda name: [float(one[name]) for one in found if one[by] == value]
        print("%-6s %-5s %-18s without %9.0f/s | slowdown %s | floor %s | guardian %.4f of a processor" % (
            found[0]["part"], found[0]["transport"], value, middle(column("per_s_without")), spread(column("slowdown")),
            spread(column("floor")), middle(column("guardian_cpu"))), flush=True)


def bars(pane, labels, values, floors, published, title):
    """Draws the slowdowns in percent, with minimum and maximum. Grey bars show the noise."""
    for spot, (found, floor) in enumerate(zip(values, floors)):
        percent, noise = (sorted(100 * one - 100 for one in many) for many in (found, floor))
        pane.bar(spot, middle(percent), 0.5, color="#4c78a8", zorder=2)
        pane.plot([spot, spot], [percent[0], percent[-1]], color="black", lw=1, zorder=3)
        pane.bar(spot, noise[-1] - noise[0], 0.8, noise[0], color="0.85", zorder=1)
        pane.annotate("%+.1f" % middle(percent), (spot, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom",
                      fontsize=7)
    for style, (name, slow) in zip(("--", ":"), published.items()):
        pane.axhline(100 * slow - 100, color="crimson", lw=1, ls=style, zorder=1, label=name)
    pane.axhline(0, color="0.4", lw=0.8)
    pane.set_xticks(range(len(labels)), labels, fontsize=7)
    pane.set_xlim(-0.6, len(labels) - 0.4)
    pane.set_title(title, pad=14, fontsize=9)
    pane.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.2), alignment="left", title="published, another machine",
                title_fontsize=7)


def draw(path):
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    column = lambda name, wanted: [float(one[name]) for one in rows
                                   if all(one[key] == str(value) for key, value in wanted.items())]
    columns = lambda all_wanted: [[column(name, wanted) for wanted in all_wanted] for name in ("slowdown", "floor")]
    figure, panes = plot.subplots(1, 3, layout="constrained", figsize=(11, 4), width_ratios=[6, 2.6, 4])
    cases = [{"part": "keep", "transport": transport, "way": way} for transport in ("unix", "tcp") for way in WAYS]
    bars(panes[0], ["%s\n%s" % (one["transport"], one["way"].replace(" ", "\n", 1)) for one in cases], *columns(cases),
         {"supervised, +1.2 %": PUBLISHED["keep"]}, "exchanges over one connection")
    bars(panes[1], ["unix", "tcp"], *columns([{"part": "anew", "transport": one} for one in ("unix", "tcp")]),
         {"lost at each call, +730 %": PUBLISHED["anew"]}, "a connection for each exchange")
    bars(panes[2], ["%d" % channels for channels in CHANNELS],
         *columns([{"part": "watch", "channels": channels} for channels in CHANNELS]),
         {"1,852 watched %s, %+.0f %%" % (each, 100 * slow - 100): slow for each, slow in PUBLISHED_WATCH.items()},
         "a computation beside listening sockets")
    panes[0].set_ylabel("slowdown, %")
    panes[2].set_xlabel("listening sockets", fontsize=8)
    panes[2].set_yscale("symlog", linthresh=5)
    panes[2].set_yticks([-10, -5, 0, 5, 10, 100], ["-10", "-5", "0", "5", "10", "100"])
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = results(__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of short windows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window in seconds")
    parser.add_argument("--part", choices=("exchange", "watch"), help="measure only this part")
    parser.add_argument("--pin", action="store_true", help="run both programs of an exchange on the first processor")
    parser.add_argument("--plot", metavar="CSV", help="only draw the plot of earlier rows again")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        for transport, kind in TRANSPORTS if options.part != "watch" else ():
            exchange(options, rows, scratch, transport, kind)
        if options.part != "exchange":
            watch(options, rows, scratch)
    main(work)
    rows.close()
    if not options.part:
        draw(rows.path)


if __name__ == "__main__":
    sys.exit(bench())
