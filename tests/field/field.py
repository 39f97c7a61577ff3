#!/usr/bin/env python3
"""Do real programs survive `undying`? Each program is tested with its own clients and its own consistency check.

There are two trials. In the trial `one-shot`, the program is put under load, ended by `undying checkpoint --kill`, and
restored by `undying restore`, twice. In the trial `run`, the program runs under `undying run`. Its root process is
killed with SIGKILL three times, at random moments of a printed seed. After both trials, the data is checked.

The verdict of a trial is one of these:

- works: the program passed. `fresh N of M` means that it started from its beginning after N of M kills.
- refused: `undying` refused a checkpoint or a restore. The verdict contains the reason.
- broken: the program failed, or its data is wrong. The exit status is then 1.
- unsupported: a requirement of the program is missing on this machine.

Needs root. Each trial has its own directory, ports and processes, which are removed at its end. With --install, missing
packages are installed by apt-get. If a package starts a service, the service keeps running.
"""
import argparse
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
from lib import suite, table  # noqa: E402


def newest_binary():
    """Returns the path of the newest `undying` that was built in this workspace."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(HERE, "..", "..", "target"))
    paths = [os.path.abspath(os.path.join(target, "x86_64-unknown-linux-gnu", profile, "undying"))
             for profile in ("debug", "release")]
    return max(filter(os.path.exists, paths), key=os.path.getmtime, default="undying")


def options(known):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="test only these programs or groups of programs")
    parser.add_argument("--quick", action="store_true", help="test only the programs that `make test` tests")
    parser.add_argument("--list", action="store_true", help="list the programs and exit")
    parser.add_argument("--install", action="store_true", help="install missing Debian packages first")
    parser.add_argument("--trial", choices=suite.TRIALS, help="run only this trial")
    parser.add_argument("--kills", type=int, default=3, help="number of kills in the trial `run` [3]")
    parser.add_argument("--seed", type=int, default=None, help="seed of an earlier run, to repeat its random moments")
    parser.add_argument("--report", metavar="FILE",
                        help="write the rows to FILE: JSON if its name ends in .json, else Markdown")
    parser.add_argument("--keep", action="store_true", help="keep the directories of broken programs")
    parser.add_argument("--undying", type=os.path.abspath, default=newest_binary())
    chosen = parser.parse_args()
    unknown = set(chosen.only or []) - set(known) - {kind.group for kind in known.values()}
    if unknown:
        parser.error("no such program: %s (see --list)" % ", ".join(sorted(unknown)))
    return chosen


def open_standard_streams():
    """Opens /dev/null for closed standard streams. Otherwise, the next open file would get such a descriptor."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


def main():
    open_standard_streams()
    known = suite.programs()
    chosen = options(known)
    kinds = [kind for kind in known.values() if (not chosen.only or kind.name in chosen.only or kind.group in chosen.only)
             and (kind.quick or not chosen.quick)]
    if chosen.list:
        for kind in kinds:
            print("%-22s %-9s %s" % (kind.name, kind.group, ", ".join(sorted(set(kind.needs.values())))))
        return 0
    missing = suite.missing_packages(kinds)
    if chosen.install and missing and os.geteuid() == 0:
        print("installing: %s" % " ".join(missing), flush=True)
        suite.install(missing)
    seed = random.SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    print("seed %d, %s" % (seed, chosen.undying), flush=True)
    setup = suite.Options(chosen.undying, seed, chosen.kills, chosen.keep,
                          (chosen.trial,) if chosen.trial else suite.TRIALS)
    rows = []
    for kind in kinds:
        for row in suite.rows_of(kind, setup):
            rows.append(row)
            print(table.line(row), flush=True)
    print(table.summary(rows))
    if chosen.report:
        table.write_report(chosen.report, rows, table.head(seed))
    return 1 if any(row["verdict"] == "broken" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
