#!/usr/bin/env python3
"""Which errors do clients see when a component of `undying up` is killed a hundred times at random moments?

Six servers are tested: redis, memcached, nginx with a master and workers, python3 -m http.server, a Node HTTP server,
and a server on a Unix socket. Each server is tested with the policy `stateless`, and with `checkpointed` every 50 ms.
TCP servers are also tested with `output = "committed"`.

Each kill is a SIGKILL at a random moment of a printed seed. For nginx, a kill hits the master, a worker, or all
processes. Some kills hit an incarnation that has just started.

Several clients send requests during the kills. Some open a connection for each request. Some keep a connection, and
open the next when it ends. Some keep a connection and are idle most of the time. The clients of redis and memcached
with kept connections write 1, 2, 3 ... to a key of their own, and read each value back. If the connection of an idle
client stays open, the client must read the value that it wrote last.

These conditions must hold:

- No connection is refused, and no request fails. Established connections may end (`eof`), as many times per client as
  the server was killed. With nginx, twice as many times, because of the two workers.
- A server with checkpoints is restored after each kill. It has every value that was acknowledged before the checkpoint.
- With `output = "committed"`, no acknowledged value is lost, and no request is executed twice.

Without `output = "committed"`, values that were acknowledged after the checkpoint may be lost. A `stateless` server may
lose all values. These losses are counted.

Needs root. Writes channels-TAG.csv (a row for each client), channels-TAG-deaths.csv and channels-TAG.md. With
--write-docs, it also writes benches/results/channels.md and the table of docs/operating/channels.md. Exits with 1 if a
condition did not hold, or if a server was not tested.
"""
import argparse
import csv
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
from lib import suite, table  # noqa: E402
from supervised import report, trials  # noqa: E402
from supervised.servers import SERVERS  # noqa: E402

# `committed` means the policy `checkpointed` with `output = "committed"`.
POLICIES = ("stateless", "checkpointed", "committed")
KILLS, QUICK_KILLS = 100, 10


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--undying", type=os.path.abspath, default=field.newest_binary())
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "benches"))
    parser.add_argument("--tag", default=datetime.date.today().isoformat())
    parser.add_argument("--only", nargs="+", choices=SERVERS, default=list(SERVERS), metavar="NAME",
                        help="test only these servers; known: %s" % ", ".join(SERVERS))
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=POLICIES, metavar="NAME",
                        help="test only these policies; known: %s" % ", ".join(POLICIES))
    parser.add_argument("--kills", type=int, help="number of kills for each row [%d, quick: %d]" % (KILLS, QUICK_KILLS))
    parser.add_argument("--quick", action="store_true", help="make fewer kills")
    parser.add_argument("--clients", type=int, default=4, help="number of clients of each kind [4]")
    parser.add_argument("--every", default="50ms", help="time between two checkpoints [50ms]")
    parser.add_argument("--seed", type=int, help="seed of an earlier run, to repeat its random moments")
    parser.add_argument("--write-docs", action="store_true", help="write the tables of the documents")
    parser.add_argument("--keep", action="store_true", help="keep the directories of failed servers")
    chosen = parser.parse_args()
    chosen.kills = (QUICK_KILLS if chosen.quick else KILLS) if chosen.kills is None else chosen.kills
    return chosen


def row_of(kind, policy, chosen, seed):
    """Tests one server with one policy. Returns its row."""
    row = {"server": kind.name, "policy": policy, "version": "", "verdict": "unsupported", "reason": ""}
    lacking = [command for command in kind.needs if not suite.has(command)]
    if lacking or os.geteuid() != 0:
        row["reason"] = ", ".join(lacking) or "root"
        return row
    begin = time.monotonic()
    row.update(suite.in_own_process(trials.limit_s(chosen), lambda *place: trials.work(kind, policy, chosen, seed, *place),
                                    chosen.keep))
    row["seconds"] = round(time.monotonic() - begin, 1)
    return row


def write(chosen, about, rows):
    """Writes the present rows. It is called after each row, so that an interrupted campaign leaves its rows."""
    os.makedirs(chosen.out, exist_ok=True)
    base = os.path.join(chosen.out, "channels-%s" % chosen.tag)
    for path, columns, lines in ((base + ".csv", report.CLIENT_COLUMNS, report.client_lines(rows)),
                                 (base + "-deaths.csv", report.DEATH_COLUMNS, report.death_lines(rows))):
        with open(path, "w", newline="") as file:
            file.writelines("# %s: %s\n" % item for item in about.items())
            csv.writer(file, lineterminator="\n").writerows([columns, *lines])
    report.write_results(base + ".md", about, rows)


def main():
    field.open_standard_streams()
    chosen = options()
    seed = random.SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    about = {**table.head(seed), "load average at the beginning": "%.1f %.1f %.1f" % os.getloadavg(),
             "every": chosen.every, "clients of each kind": chosen.clients}
    print("\n".join("%s: %s" % item for item in about.items()), flush=True)
    rows = []
    for kind in (SERVERS[name] for name in chosen.only):
        # Delayed output works only for TCP.
        for policy in (policy for policy in chosen.policy if kind.is_tcp or policy != "committed"):
            rows.append(row_of(kind, policy, chosen, seed))
            print(report.line(rows[-1]), flush=True)
            write(chosen, about, rows)
    about["load average at the end"] = "%.1f %.1f %.1f" % os.getloadavg()
    write(chosen, about, rows)
    if chosen.write_docs:
        report.write_results(os.path.join(ROOT, "benches", "results", "channels.md"), about, rows)
        report.write_docs(os.path.join(ROOT, "docs", "operating", "channels.md"), rows)
    held = all(row["verdict"] == "works" for row in rows)
    print("held" if held else "DID NOT HOLD")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
