"""One row: a server with a policy, its clients, its kills, and what must hold."""
import collections
import os
import random
import statistics

from lib.system import Wrong, wait_for

from .clients import clients_of
from .guarded import System
from .servers import WORKERS

# A row takes some 0.5 s a kill; this bounds one that hangs.
LIMIT_FLOOR_S, LIMIT_PER_KILL_S = 300, 15
# The file of a Unix socket is away between unlink(2) and bind(2) of the next incarnation: docs/operating/channels.md.
NO_FILE = "connect: ENOENT"
# A client records an answer a little after the server gave it; a death so short before belongs to the read.
MARGIN_S = 0.05


def limit_s(chosen):
    return LIMIT_FLOOR_S + LIMIT_PER_KILL_S * chosen.kills


def work(kind, policy, chosen, seed, folder, row):
    """Fills in the row. The verdict is that of `suite.in_own_process`, unless something did not hold."""
    place = os.path.join(folder, "p")
    os.mkdir(place, 0o755)
    random_of = lambda *words: random.Random(" ".join(map(str, (seed, kind.name, policy, *words))))
    server = kind(place)
    row["version"] = kind.version()
    system, clients, wrong = System(chosen.undying, server, policy, chosen.every, random_of("kills")), [], []
    try:
        system.await_up()
        before, clients = system.descriptors(), clients_of(server, chosen.clients, random_of)
        for client in clients:
            client.start()
        try:
            kill(system, chosen.kills)
            await_answers(clients)
        finally:
            for client in clients:
                client.is_over.set()
            for client in clients:
                client.stop()
            gather(row, system, clients)
        wrong += faults(row, system, clients)
        row.update(levels=system.channels(), descriptors=[before, system.descriptors()])
        system.down()
    except Wrong as problem:
        wrong.append(str(problem))
    finally:
        system.end()
    if wrong:
        row.update(verdict="broken", reason="; ".join(wrong))


def kill(system, count):
    attempts = 0
    while sum(system.kills.values()) < count:
        attempts += 1
        if attempts > 10 * count + 100:
            raise Wrong("most kills hit nothing: %s" % system.kills)
        system.kill()


def await_answers(clients):
    """Every client is answered once more: none hangs after the last return."""
    before = [client.answered for client in clients]
    wait_for(lambda: all(client.answered > old or client.problem for client, old in zip(clients, before)),
             "an answer for each client after the last return", 60)


def gather(row, system, clients):
    """The counts of clients and of deaths."""
    row.update(kills=system.kills, deaths=system.deaths, clients=[counts(client) for client in clients],
               returns=system.returns())
    rows = row["clients"]
    total = lambda name: sum(one[name] for one in rows)
    failures = collections.Counter()
    for one in rows:
        failures.update(one["failures"])
    row.update({name: total(name) for name in ("answered", "ended", "lost", "twice")}, failures=dict(failures),
               **{name: max(one[name] for one in rows) for name in ("connect_ms", "request_ms")})
    back = [one["back_ms"] for one in row["returns"] if one["back_ms"] != ""]
    row["back_ms"] = [statistics.median(back), max(back)] if back else []
    row["fresh"] = sum(1 for one in row["returns"] if one["followed_by"] == "started")
    row["too_old"] = sum(too_old(client, system) for client in clients) if system.is_checkpointed else 0


def counts(client):
    return {"client": client.kind, "connected": client.connected, "answered": client.answered, "ended": client.ended,
            "failures": dict(client.failures), "connect_ms": round(client.connect_s * 1000, 1),
            "request_ms": round(client.request_s * 1000, 1), "lost": getattr(client, "lost", 0),
            "twice": getattr(client, "twice", 0)}


def too_old(client, system):
    """How often a client found less than was answered before the checkpoint of the restore was taken."""
    found, returned = 0, []
    for held, read, value in getattr(client, "found", ()):
        # A restored server answers before its guardian has reported the restore, but not before its death was.
        deaths = [death for death in system.events.of("died") if held - MARGIN_S <= death["at"] <= read]
        moments = [system.checkpoint_after(death) for death in deaths]
        found += not moments or None not in moments and value < had_to_hold(client, min(moments), returned)
        if deaths:
            returned.append((deaths[0]["at"], read, value))
    return found


def had_to_hold(client, moment, returned):
    """What the server had to hold at a time. From a death until the read that found less it had that value: a client
    that is idle reads long after, and a checkpoint in between has no more."""
    return next((value for died, read, value in returned if died <= moment <= read), client.held_at(moment))


def faults(row, system, clients):
    """What did not hold."""
    wrong = ["a client: %r" % client.problem for client in clients if client.problem]
    failures = {name: count for name, count in row["failures"].items() if name != NO_FILE}
    kills = sum(row["kills"].values())
    if failures:
        wrong.append("requests failed: %s" % ", ".join("%d × %s" % (count, name) for name, count in failures.items()))
    # A client whose worker was killed may have its next connection at another worker of the same tree.
    if any(one["ended"] > kills * (WORKERS if system.server.has_workers else 1) for one in row["clients"]):
        wrong.append("a client met more ends of connections than there were kills")
    if system.is_checkpointed and row["fresh"]:
        wrong.append("%d deaths were followed by a start from the beginning" % row["fresh"])
    if system.is_committed and (row["lost"] or row["twice"]):
        wrong.append("%d answered numbers were lost, %d came twice" % (row["lost"], row["twice"]))
    if row["too_old"]:
        wrong.append("%d times a client lost what was answered before the checkpoint" % row["too_old"])
    if len(row["returns"]) != row["deaths"]:
        wrong.append("%d deaths were reported of %d" % (len(row["returns"]), row["deaths"]))
    return wrong
