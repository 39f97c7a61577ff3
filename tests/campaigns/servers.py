#!/usr/bin/env python3
"""Does a server lose an acknowledged request when it is killed under `undying`, that it would keep without `undying`?

Eight servers store numbered items: a server that rewrites 2 MiB of a file for each request, a server that maps 10 MiB
shared and writable, DuckDB, slapd, BIND and Knot DNS with dynamic updates (BIND also over UDP), Postfix, and Kafka.
Clients outside of the process tree record each acknowledged item. The root process of the server is killed with SIGKILL
at random moments of a printed seed. After each kill, the server must answer again, and must have each item that it has
acknowledged.

There are seven modes:

- bare: without `undying`. The campaign starts the server again after each kill.
- run: `undying run --restart-from beginning`, the advice of docs/operating/files.md for such servers.
- fresh: `undying run --files fresh`, the other advice of this page.
- default: `undying run` without a policy for files.
- held: `undying run --output committed`.
- stateless: `undying up` with `policy = "stateless"`, the advice of this page for a system.
- committed: `undying up` with `output = "committed"`.

A row *holds* if all kills were made and no acknowledged item is lost. In the mode `default`, servers that do not sync
their files before they reply may lose items, because their files are rolled back. These losses are counted.

Needs root. With --install, missing packages are installed: from Debian, and Python and Maven packages below target/.
A server whose packages are missing is reported as *missing*. The campaign writes servers-TAG.md and servers-TAG.json,
and exits with 1 if a row does not hold.
"""
import argparse
import datetime
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "field"))
sys.dont_write_bytecode = True
import field  # noqa: E402
from acknowledged import guards, packages, servers, trials  # noqa: E402
from acknowledged.kafka import Kafka  # noqa: E402
from lib import suite, table  # noqa: E402

SERVERS = {kind.name: kind for kind in (*servers.KINDS, Kafka)}
COLUMNS = ("server", "version", "mode", "kills", "acknowledged", "lost", "restored", "fresh", "s", "verdict")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--undying", type=os.path.abspath, default=field.newest_binary())
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "benches"))
    parser.add_argument("--tag", default=datetime.date.today().isoformat())
    parser.add_argument("--only", nargs="+", choices=SERVERS, default=list(SERVERS), metavar="NAME",
                        help="test only these servers; known: %s" % ", ".join(SERVERS))
    parser.add_argument("--mode", nargs="+", choices=guards.MODES, default=list(guards.MODES), metavar="NAME",
                        help="test only these modes; known: %s" % ", ".join(guards.MODES))
    parser.add_argument("--bare", action="store_const", dest="mode", const=["bare"], help="the same as --mode bare")
    parser.add_argument("--kills", type=int, default=10, help="number of kills for each row [10]")
    parser.add_argument("--seed", type=int, help="seed of an earlier run, to repeat its random moments")
    parser.add_argument("--install", action="store_true", help="install missing packages first")
    parser.add_argument("--packages", type=os.path.abspath, default=os.path.join(ROOT, "target", "servers"),
                        help="directory of the Python and Maven packages [target/servers]")
    parser.add_argument("--keep", action="store_true", help="keep the directories of failed rows")
    return parser.parse_args()


def row_of(kind, mode, chosen):
    row = {"server": kind.name, "version": "", "mode": mode, "kills": 0, "acknowledged": 0, "lost": 0, "restored": 0,
           "fresh": 0, "seconds": 0.0, "verdict": "missing", "reason": suite.lacks(kind) or kind.lacking() or "", "said": ""}
    if not row["reason"]:
        limit, begin = trials.LIMIT_FLOOR_S + trials.LIMIT_PER_KILL_S * chosen.kills, time.monotonic()
        row.update(suite.in_own_process(limit, lambda *place: trials.work(kind, mode, chosen, *place), chosen.keep))
        row["seconds"] = round(time.monotonic() - begin, 1)
    return row


def cells(row):
    verdict = "holds" if row["verdict"] == "works" else "%s (%s)" % (row["verdict"], table.printable(row["reason"]))
    return [row["server"], row["version"], row["mode"], row["kills"], row["acknowledged"], row["lost"], row["restored"],
            row["fresh"], row["seconds"], verdict]


def write(chosen, about, rows):
    """Writes the present rows. It is called after each row, so that an interrupted campaign leaves its rows."""
    os.makedirs(chosen.out, exist_ok=True)
    base = os.path.join(chosen.out, "servers-%s" % chosen.tag)
    table.write_report(base + ".json", rows, about)
    with open(base + ".md", "w") as file:
        file.write(table.markdown("Acknowledged requests of killed servers", ["%s: %s" % item for item in about.items()],
                                  COLUMNS, map(cells, rows)))


def main():
    field.open_standard_streams()
    chosen = options()
    kinds = [SERVERS[name] for name in chosen.only]
    for kind in kinds:
        kind.packages = chosen.packages
    if chosen.install:
        packages.install(kinds, chosen.packages)
    seed = chosen.seed = random.SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    about, rows = table.head(seed), []
    print("\n".join("%s: %s" % item for item in about.items()), flush=True)
    for kind in kinds:
        for mode in (mode for mode in chosen.mode if kind.is_tcp or mode not in ("held", "committed")):
            rows.append(row_of(kind, mode, chosen))
            print("%-14s %-10s %2d kills  %5d acknowledged  %3d lost  %2d restored  %2d fresh  %5.1f s  %s" % (
                *(cells(rows[-1])[place] for place in (0, 2, 3, 4, 5, 6, 7, 8)), cells(rows[-1])[-1]), flush=True)
            write(chosen, about, rows)
    held = all(row["verdict"] == "works" for row in rows)
    print("held" if held else "DID NOT HOLD")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
