#!/usr/bin/env python3
"""Do real programs survive `undying`? Each one in two trials, with its own clients and its own checker.

one-shot: load, `checkpoint --kill`, `restore`, comparison; twice. run: `undying run`, and three SIGKILLs of the root at
random moments of a printed seed. The verdicts: *works* (with the number of starts from the beginning, if any), *refused*
with the reason of `undying`, *broken*, or *unsupported* where this machine lacks something. Ends with 1 if a program is
broken.

Needs root. Each trial has a folder, ports and processes of its own and removes them. With --install, packages that are
missing are installed by apt-get; on a machine where packages start their services, those are left running.
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
    """The newest `undying` that was built in this tree."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(HERE, "..", "..", "target"))
    paths = [os.path.abspath(os.path.join(target, "x86_64-unknown-linux-gnu", profile, "undying"))
             for profile in ("debug", "release")]
    return max(filter(os.path.exists, paths), key=os.path.getmtime, default="undying")


def options(known):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these programs, or groups of programs")
    parser.add_argument("--quick", action="store_true", help="the programs that belong to `make test`")
    parser.add_argument("--list", action="store_true", help="list the programs and end")
    parser.add_argument("--install", action="store_true", help="install missing Debian packages first")
    parser.add_argument("--trial", choices=suite.TRIALS, help="one of the two trials")
    parser.add_argument("--kills", type=int, default=3, help="kills of the trial `run` [3]")
    parser.add_argument("--seed", type=int, default=None, help="repeats the random moments of an earlier call")
    parser.add_argument("--report", metavar="FILE", help="write the rows to FILE: Markdown, or JSON for *.json")
    parser.add_argument("--keep", action="store_true", help="keep the folders of broken programs")
    parser.add_argument("--undying", type=os.path.abspath, default=newest_binary())
    chosen = parser.parse_args()
    unknown = set(chosen.only or []) - set(known) - {kind.group for kind in known.values()}
    if unknown:
        parser.error("no such program: %s (see --list)" % ", ".join(sorted(unknown)))
    return chosen


def open_standard_streams():
    """A closed standard stream would be taken by the next file that is opened."""
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
