#!/usr/bin/env python3
"""Does a restore from a log take longer if the log has more epochs?

An epoch is the time between two checkpoints. The subject (the measured program) has 1 GiB. Every 10 ms, it writes 1,000
random pages, and a checkpoint is taken. After the number of epochs that --ages gives, the subject is killed and
restored, two times. The first restore reads the log from the disk. The same happens after a real death, because undying
writes the log past the page cache. For the second restore, the log is in the page cache. For comparison, an image in a
directory is restored in the same way. Each restored subject checks all its pages.

Needs root. Build the programs with `cargo build --release -p undying-cli` and
`cargo build --release -p undying-engine --examples`.
"""
import os
import shutil
import signal
import subprocess
import tempfile

from lib.harness import (Rows, build, command, files_under, into_page_cache, kill, main, middle, newest, plotter,
                         read_rows, results, save, wait_for)

QUESTION = "restore_age"
TIMES = ["restore_cold_ms", "restore_warm_ms", "cold_cpu_ms", "warm_cpu_ms"]
COLUMNS = ["source", "epochs", "taken", "round", "log_mib", *TIMES, "load_average"]
# Time limit for the epochs of one row, in seconds.
EPOCHS_S = 600


def check(pid, verdict):
    """Sends SIGUSR1 to the subject, and waits for its verdict about its pages. Raises an error if a page is wrong."""
    if os.path.exists(verdict):
        os.unlink(verdict)
    os.kill(pid, signal.SIGUSR1)
    wait_for(lambda: os.path.exists(verdict) and os.path.getsize(verdict) >= 3, "the subject's verdict")
    with open(verdict) as file:
        said = file.read()
    if said != "good":
        raise RuntimeError("the restored subject has wrong pages: " + said)


def start(program, work, options):
    ready = os.path.join(work, "ready")
    process = subprocess.Popen([program, str(options.mib), str(options.pages), str(options.hz), ready,
                                os.path.join(work, "verdict")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, cwd=work, start_new_session=True)
    wait_for(lambda: os.path.exists(ready), "the subject")
    return process.pid


def bytes_under(folder):
    return sum(os.path.getsize(path) for path in files_under(folder))


def cool(folder):
    """Removes the files of a folder from the page cache."""
    for path in files_under(folder):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def restores(pid, folder, image, work, options):
    kill(pid)
    cool(folder)
    restore = [options.undying, "--store", folder, "restore", image, "--detach"]
    cold, cold_cpu, _ = command(restore)
    check(pid, os.path.join(work, "verdict"))
    kill(pid)
    into_page_cache(folder)
    warm, warm_cpu, _ = command(restore)
    check(pid, os.path.join(work, "verdict"))
    kill(pid)
    return cold, warm, cold_cpu, warm_cpu


def of_log(program, epochs, work, options):
    pid = start(program, work, options)
    folder = os.path.join(work, "store")
    said = command([options.epochs, str(pid), folder, str(options.hz), str(epochs)], EPOCHS_S)[2]
    size = bytes_under(folder) / 2**20
    return int(said.split()[0]), size, restores(pid, folder, "job", work, options)


def of_image(program, work, options):
    pid = start(program, work, options)
    folder = os.path.join(work, "image")
    command([options.undying, "checkpoint", str(pid), "--image", folder])
    size = bytes_under(folder) / 2**20
    return 1, size, restores(pid, folder, folder, work, options)


def draw(path):
    """Draws the median restore times over the number of epochs. The image in a directory is a horizontal line."""
    plot = plotter()
    if not plot:
        return
    rows = read_rows(path)
    figure, pane = plot.subplots(figsize=(7.2, 4), layout="constrained")
    for source, style in (("log", "-"), ("image", "--")):
        mine = [row for row in rows if row["source"] == source]
        for column, where, colour in (("restore_cold_ms", "device", "#e45756"),
                                      ("restore_warm_ms", "page cache", "#4c78a8")):
            ages = {row["epochs"] for row in mine}
            groups = [[row for row in mine if row["epochs"] == age] for age in ages]
            # The plot uses the number of checkpoints that were taken. A slow machine skips some checkpoints.
            points = sorted((middle([float(row["taken"]) for row in group]),
                             middle([float(row[column]) for row in group])) for group in groups)
            name = "%s, %s" % ("log" if source == "log" else "image in a directory", where)
            if source == "image":
                pane.axhline(points[0][1], color=colour, ls=style, lw=1, label=name)
            else:
                pane.plot(*zip(*points), style, color=colour, marker="o", ms=3, label=name)
    pane.set_xlabel("epochs in the log")
    pane.set_ylabel("restore, ms")
    pane.set_ylim(bottom=0)
    pane.legend()
    save(plot, figure, path.replace(".csv", ".png"))


def bench():
    parser = results(__doc__)
    parser.add_argument("--ages", default="1,50,100,250,500,1000,2000,3000",
                        help="numbers of epochs, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=1024, help="memory of the subject in MiB")
    parser.add_argument("--pages", type=int, default=1000, help="pages that the subject writes per period")
    parser.add_argument("--hz", type=int, default=100, help="periods per second, and checkpoints per second")
    parser.add_argument("--epochs", default=newest("examples/epochs"),
                        help="the program that takes the checkpoints [newest in target/]")
    parser.add_argument("--plot", metavar="CSV", help="only draw the plot of earlier rows again")
    options = parser.parse_args()
    if options.plot:
        return draw(options.plot)
    rows = Rows(options, QUESTION, COLUMNS)

    def work(scratch):
        program = build("stamped", scratch)
        for turn in range(options.rounds):
            for age in [0] + [int(age) for age in options.ages.split(",")]:
                folder = tempfile.mkdtemp(dir=scratch)
                taken, size, times = of_log(program, age, folder, options) if age else of_image(program, folder, options)
                shutil.rmtree(folder)
                rows.add(source="log" if age else "image", epochs=age, taken=taken, round=turn, log_mib=size,
                         load_average=os.getloadavg()[0], **dict(zip(TIMES, times)))
                print(" ".join(rows.rows[-1].values()), flush=True)
    main(work)
    rows.close()
    draw(rows.path)


if __name__ == "__main__":
    bench()
