#!/usr/bin/env python3
"""Does a program that is killed under `undying run --files rewind` leave the same files as an uninterrupted run?

A job is a program that ends by itself: make, CSV and JSON, all kinds of file changes, standard output, ffmpeg, git,
tar | zstd, SQLite, LMDB, RocksDB. Each job first runs twice without `undying` (with --quick, once). Then it runs under
`undying run`, in as many runs as are needed for 50 kills. Each kill is a SIGKILL at a random moment of a printed seed.
It hits the root process, a child, or `undying run` itself.

At the end of each run, all files are compared with those of the uninterrupted run: names, types, content, modes,
owners, targets of symbolic links, hard links, extended attributes. Different times of modification are only counted.

Each database server (PostgreSQL, MariaDB, etcd) runs under the load of a client. Every transaction that was
acknowledged before the restored checkpoint must exist. No transaction may exist in part. The database must pass its own
consistency check.

Needs root. If the temporary directory is not on a requested file system, this file system is created on a loop device.
`--mode keep` and `--mode fresh` show that the campaign can fail. With `--kills 0`, the conditions must hold in every
mode. Writes rewind-TAG.md and rewind-TAG.json. Exits with 1 if a condition did not hold, or a program was not tested.
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
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="NAME",
                        help="test only these programs; known: %s" % ", ".join(PROGRAMS))
    here = disks.type_of(tempfile.gettempdir())
    parser.add_argument("--fs", type=listed, default=[here], metavar="LIST",
                        help="one or more of ext4,xfs,btrfs [that of the temporary directory, here %s]" % here)
    parser.add_argument("--kills", type=int, help="number of kills of each program on each file system [50, quick: 5]")
    parser.add_argument("--seed", type=int, help="seed of an earlier run, to repeat its random moments")
    parser.add_argument("--quick", action="store_true", help="the short form: %s, %d kills each" % (
        ", ".join(QUICK), QUICK_KILLS))
    parser.add_argument("--mode", default="rewind", help="the value of `--files` [rewind]")
    parser.add_argument("--every", default="100ms", help="time between two checkpoints [100ms]")
    parser.add_argument("--from-start", action="store_true", help="also kill before the first checkpoint")
    parser.add_argument("--option", action="append", default=[], metavar="WORD",
                        help="an additional argument of `undying run`")
    parser.add_argument("--install", action="store_true", help="install missing Debian packages first")
    parser.add_argument("--keep", action="store_true", help="keep the directories of failed programs")
    chosen = parser.parse_args()
    unknown = set(chosen.fs) - {here, *disks.MAKERS}
    if unknown:
        parser.error("no such file system: %s" % ", ".join(sorted(unknown)))
    chosen.only = chosen.only or (QUICK if chosen.quick else list(PROGRAMS))
    chosen.kills = (QUICK_KILLS if chosen.quick else 50) if chosen.kills is None else chosen.kills
    return chosen


def row_of(kind, disk, setup):
    """Tests one program on one type of file system. Returns its row."""
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
