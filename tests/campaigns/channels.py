#!/usr/bin/env python3
"""What do clients notice when a component of `undying up` is killed a hundred times at random moments?

Six servers (redis, memcached, nginx with a master and workers, python3 -m http.server, a Node HTTP server, a server on a
Unix socket) with each policy: `stateless`, and `checkpointed` every 50 ms. SIGKILLs come at random moments of a printed
seed; for nginx they hit the master, a worker or the whole tree. Some hit an incarnation that has just started. Meanwhile
several clients ask without pause: some open a connection for each request, some keep one and open the next at its end.
Others keep one and are idle nearly all of the time. The kept ones of redis and memcached write 1, 2, 3 ... to a key of
their own and read each back; an idle one whose connection stays has to find what it wrote last.

What must hold: no connection is refused and no request fails, except that established connections end (`eof`). A server
with checkpoints comes back from one each time, with everything that was answered before that checkpoint was taken. With
`output = "committed"` nothing that was answered is lost or done twice, and only connections end that no checkpoint has
seen.
What was answered since may be lost, and a server without checkpoints loses all: counted, not judged.

Needs root. Writes channels-TAG.csv (clients), channels-TAG-deaths.csv and channels-TAG.md; with --write-docs
benches/results/channels.md and the table of docs/operating/channels.md as well. Ends with 1 if something did not hold,
or a server could not be tried.
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

# The last is `checkpointed` with `output = "committed"`.
POLICIES = ("stateless", "checkpointed", "committed")
KILLS, QUICK_KILLS = 100, 10


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--undying", type=os.path.abspath, default=field.newest_binary())
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "benches"))
    parser.add_argument("--tag", default=datetime.date.today().isoformat())
    parser.add_argument("--only", nargs="+", choices=SERVERS, default=list(SERVERS), metavar="NAME",
                        help="some of %s" % ", ".join(SERVERS))
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=POLICIES, metavar="NAME",
                        help="one of %s" % ", ".join(POLICIES))
    parser.add_argument("--kills", type=int, help="kills of each row [%d, quick: %d]" % (KILLS, QUICK_KILLS))
    parser.add_argument("--quick", action="store_true", help="the short form")
    parser.add_argument("--clients", type=int, default=4, help="clients of each kind [4]")
    parser.add_argument("--every", default="50ms", help="time between two checkpoints [50ms]")
    parser.add_argument("--seed", type=int, help="repeats the random moments of an earlier call")
    parser.add_argument("--write-docs", action="store_true", help="write the tables of the documents")
    parser.add_argument("--keep", action="store_true", help="keep the folders of what did not hold")
    chosen = parser.parse_args()
    chosen.kills = (QUICK_KILLS if chosen.quick else KILLS) if chosen.kills is None else chosen.kills
    return chosen


def row_of(kind, policy, chosen, seed):
    """The row of one server with one policy."""
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
    """What is there so far: a campaign that is ended early leaves its rows."""
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
        # Only what is sent over TCP can be held.
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
