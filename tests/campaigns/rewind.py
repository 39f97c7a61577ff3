#!/usr/bin/env python3
"""Does a program that is killed under `undying run --files rewind` leave the files of an uninterrupted run?

Each job (make, CSV and JSON, every kind of change, standard output, ffmpeg, git, tar | zstd, SQLite, LMDB, RocksDB) runs
uninterrupted, twice, and then under `undying run` with SIGKILLs at random moments of a printed seed: of the root, of a
child, of `undying run` itself, 50 in all, over as many runs as it takes. Files are compared byte by byte: content,
names, types, modes, owners, targets of symbolic links, links, extended attributes. Times of modification are counted
apart. Each database server (PostgreSQL, MariaDB, etcd) is under load from outside: every transaction that was
acknowledged before the restored checkpoint is there, none half, and its own checker finds nothing.

Needs root. A file system that the temporary folder does not have is made on a loop device. `--mode keep` and
`--mode fresh` show that the campaign can fail; `--kills 0` must hold with every mode. Writes rewind-TAG.md and .json.
Ends with 1 if something did not hold, or a program could not be tried.
"""
import argparse
import datetime
import json
import os
import random
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "field"))
sys.dont_write_bytecode = True
import field  # noqa: E402
from lib import suite, table  # noqa: E402
from rewinding import disks, guarded, jobs, services, trials  # noqa: E402

PROGRAMS = {**jobs.JOBS, **services.SERVICES}
QUICK, QUICK_KILLS = ("make", "csv-json", "sqlite-wal"), 5
COLUMNS = ("program", "version", "fs", "kills", "root", "child", "guardian", "runs", "from checkpoint", "afresh",
           "differences", "odd mtimes", "s", "verdict")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--undying", type=os.path.abspath, default=field.newest_binary())
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "benches"))
    parser.add_argument("--tag", default=datetime.date.today().isoformat())
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="NAME", help="some of %s" % ", ".join(PROGRAMS))
    here = disks.type_of(tempfile.gettempdir())
    parser.add_argument("--fs", type=listed, default=[here], metavar="LIST",
                        help="some of ext4,xfs,btrfs [that of the temporary folder, here %s]" % here)
    parser.add_argument("--kills", type=int, help="kills of each program on each file system [50, quick: 5]")
    parser.add_argument("--seed", type=int, help="repeats the random moments of an earlier call")
    parser.add_argument("--quick", action="store_true", help="the short form: %s, %d kills each" % (
        ", ".join(QUICK), QUICK_KILLS))
    parser.add_argument("--mode", default="rewind", help="the value of `--files` [rewind]")
    parser.add_argument("--every", default="100ms", help="time between two checkpoints [100ms]")
    parser.add_argument("--from-start", action="store_true", help="kill also before the first checkpoint")
    parser.add_argument("--option", action="append", default=[], metavar="WORD", help="one more word for `undying run`")
    parser.add_argument("--install", action="store_true", help="install missing Debian packages first")
    parser.add_argument("--keep", action="store_true", help="keep the folders of what did not hold")
    chosen = parser.parse_args()
    unknown = set(chosen.fs) - {here, *disks.MAKERS}
    if unknown:
        parser.error("no such file system: %s" % ", ".join(sorted(unknown)))
    chosen.only = chosen.only or (QUICK if chosen.quick else list(PROGRAMS))
    chosen.kills = (QUICK_KILLS if chosen.quick else 50) if chosen.kills is None else chosen.kills
    return chosen


def row_of(kind, disk, setup):
    """The row of one program on one type of file system."""
    row = {"program": kind.name, "version": "", "fs": disk, "seed": setup.seed, "verdict": "unsupported", "reason": ""}
    begin, lacking = time.monotonic(), suite.lacks(kind)
    if lacking:
        row["reason"] = lacking
        return row
    module = services if kind.name in services.SERVICES else trials
    work = module.try_service if module is services else module.try_job
    row.update(suite.in_own_process(module.limit_s(setup), lambda *place: work(kind, disk, setup, *place), setup.keep))
    row["seconds"] = round(time.monotonic() - begin, 1)
    return row


def verdict(row):
    if row["verdict"] != "works":
        return "%s (%s)" % (row["verdict"], table.printable(row["reason"]))
    because = "".join(": " + table.printable(why) for why in row.get("why_fresh", ()))
    return "holds" + (" (afresh %d times%s)" % (row["fresh"], because) if row.get("fresh") else "")


def cells(row):
    counts = [row.get(key, "") for key in ("kills", "root", "child", "guardian", "runs", "restored", "fresh", "differences",
                                           "odd_times", "seconds")]
    return [row["program"], row["version"] if "version" in row else "", row["fs"], *counts, verdict(row)]


def report(chosen, rows, about):
    os.makedirs(chosen.out, exist_ok=True)
    base = os.path.join(chosen.out, "rewind-%s" % chosen.tag)
    facts = ["%s: %s" % item for item in about.items()]
    with open(base + ".md", "w") as file:
        file.write(table.markdown("Files after kills, against an uninterrupted run", facts, COLUMNS, map(cells, rows)))
    with open(base + ".json", "w") as file:
        json.dump({**about, "rows": rows}, file, indent=1)
        file.write("\n")


def main():
    field.open_standard_streams()
    chosen = options()
    kinds = [PROGRAMS[name] for name in chosen.only]
    missing = suite.missing_packages(kinds)
    missing += [disks.PACKAGES[disk] for disk in chosen.fs
                if disk in disks.MAKERS and not suite.has(disks.MAKERS[disk][0])]
    if chosen.install and missing and os.geteuid() == 0:
        print("installing: %s" % " ".join(missing), flush=True)
        suite.install(missing)
    seed = random.SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    about = {**table.head(seed), "files": chosen.mode, "every": chosen.every}
    print("\n".join("%s: %s" % item for item in about.items()), flush=True)
    setup, rows = guarded.Setup(chosen, seed), []
    for disk in chosen.fs:
        for kind in kinds:
            rows.append(row_of(kind, disk, setup))
            print("%-14s %-6s %3s kills (root %s, child %s, guardian %s) in %s runs; %s from checkpoint, %s afresh; "
                  "%s differences, %s odd mtimes; %s s; %s" % (rows[-1]["program"], disk, *cells(rows[-1])[3:]), flush=True)
            report(chosen, rows, about)
    held = all(row["verdict"] == "works" for row in rows)
    print("held" if held else "DID NOT HOLD")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
