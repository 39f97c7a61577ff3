#!/usr/bin/env python3
"""Does `undying run` corrupt a database or lose an acknowledged transaction?

MariaDB, PostgreSQL, etcd and SQLite (WAL and rollback journal) run under load. Each server is killed with SIGKILL 20
times, at random moments of a printed seed. Three options of `undying run` differ from the defaults. The interval is
shorter, so that checkpoints exist. The limit of restarts is higher. `--files fresh` starts a server from the beginning
if its files have changed after the checkpoint.

After each kill, the server must answer again: either `undying` has restored it, or it was started from the beginning
and has recovered by itself. At the end, each acknowledged item must exist. The database must pass its own consistency
check: CHECK TABLE EXTENDED and innochecksum, pg_amcheck, the hashes of etcdctl, PRAGMA integrity_check.

The programs are defined in tests/field/programs/. The campaign writes databases-TAG.md and databases-TAG.json. It exits
with 1 if a database is broken. It also exits with 1 if `undying` refuses a database, because nothing was tested then.
"""
import argparse
import datetime
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "field"))
sys.dont_write_bytecode = True
import field  # noqa: E402
from lib import suite, table  # noqa: E402

DATABASES = ("mariadb", "postgresql", "etcd", "sqlite-wal", "sqlite-delete")
# Time limit per kill, in case a server hangs. A kill, a restart and two checkpoints usually take about 2 s.
LIMIT_PER_KILL_S = 30


def main():
    field.open_standard_streams()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--undying", type=os.path.abspath, default=field.newest_binary())
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "benches"))
    parser.add_argument("--tag", default=datetime.date.today().isoformat())
    parser.add_argument("--kills", type=int, default=20, help="number of kills of each database [20]")
    parser.add_argument("--only", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME",
                        help="test only these databases; known: %s" % ", ".join(DATABASES))
    parser.add_argument("--seed", type=int, help="seed of an earlier run, to repeat its random moments")
    parser.add_argument("--install", action="store_true", help="install missing Debian packages first")
    parser.add_argument("--keep", action="store_true", help="keep the directories of broken databases")
    chosen = parser.parse_args()
    known = suite.programs()
    kinds = [known[name] for name in chosen.only]
    missing = suite.missing_packages(kinds)
    if chosen.install and missing and os.geteuid() == 0:
        suite.install(missing)
    seed = random.SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    about = table.head(seed)
    print("\n".join("%s: %s" % item for item in about.items()), flush=True)
    setup, rows = suite.Options(chosen.undying, seed, chosen.kills, chosen.keep, ("run",)), []
    for kind in kinds:
        kind.limit_s += LIMIT_PER_KILL_S * chosen.kills
        for row in suite.rows_of(kind, setup):
            rows.append(row)
            print("%s; %d acknowledged, restored %d times, fresh %d times" % (
                table.line(row), row["acknowledged"], row["restored"], row["fresh"]), flush=True)
    os.makedirs(chosen.out, exist_ok=True)
    for suffix in ("md", "json"):
        table.write_report(os.path.join(chosen.out, "databases-%s.%s" % (chosen.tag, suffix)), rows, about)
    held = all(row["verdict"] in ("works", "unsupported") for row in rows)
    print("held" if held else "DID NOT HOLD")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
