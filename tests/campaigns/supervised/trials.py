"""The trial of a server with one policy: runs clients during kills, and checks the conditions. Fills in one row."""
import collections
import os
import random
import statistics

from lib.system import Wrong, wait_for

from .clients import clients_of
from .guarded import System
from .servers import WORKERS

# Time limit of a row, in case it hangs: a fixed part, and a part for each kill. A kill usually takes about 0.5 s.
LIMIT_FLOOR_S, LIMIT_PER_KILL_S = 300, 15
# A Unix socket has no file between unlink(2) and bind(2) of the next incarnation. See docs/operating/channels.md.
NO_FILE = "connect: ENOENT"
# A client records a reply a little after the server has sent it. A death up to this long before the record can
# therefore be a death after the reply.
MARGIN_S = 0.05


def limit_s(chosen):
    return LIMIT_FLOOR_S + LIMIT_PER_KILL_S * chosen.kills


def work(kind, policy, chosen, seed, folder, row):
    """Runs the trial, and fills in the row. Sets the verdict `broken` if a condition did not hold."""
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
            raise Wrong("most kills found no process: %s" % system.kills)
        system.kill()


def await_answers(clients):
    """Waits until each client has received one more reply. This proves that no client hangs after the last kill."""
    before = [client.answered for client in clients]
    wait_for(lambda: all(client.answered > old or client.problem for client, old in zip(clients, before)),
             "a reply to each client after the last kill", 60)


def gather(row, system, clients):
    """Adds the counts of the clients and the rows of the deaths to the row."""
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
    """Counts reads that found a smaller number than the client had before the restored checkpoint."""
    found, returned = 0, []
    for held, read, value in getattr(client, "found", ()):
        # A restored server can answer before the event of its restore. The event of its death always comes first.
        deaths = [death for death in system.events.of("died") if held - MARGIN_S <= death["at"] <= read]
        moments = [system.checkpoint_after(death) for death in deaths]
        found += not moments or None not in moments and value < had_to_hold(client, min(moments), returned)
        if deaths:
            returned.append((deaths[0]["at"], read, value))
    return found


def had_to_hold(client, moment, returned):
    """Returns the number that the server had to have at a time.

    After an earlier death, the server has only the smaller number that the next read found. An idle client reads long
    after the death. A checkpoint between the death and the read also contains only the smaller number.
    """
    return next((value for died, read, value in returned if died <= moment <= read), client.held_at(moment))


def faults(row, system, clients):
    """Returns the conditions that did not hold, as text."""
    wrong = ["a client: %r" % client.problem for client in clients if client.problem]
    failures = {name: count for name, count in row["failures"].items() if name != NO_FILE}
    kills = sum(row["kills"].values())
    if failures:
        wrong.append("requests failed: %s" % ", ".join("%d × %s" % (count, name) for name, count in failures.items()))
    # After one worker is killed, the next connection of the client can be at the other worker, which is killed later.
    if any(one["ended"] > kills * (WORKERS if system.server.has_workers else 1) for one in row["clients"]):
        wrong.append("a client saw more ends of connections than there were kills")
    if system.is_checkpointed and row["fresh"]:
        wrong.append("%d deaths were followed by a start from the beginning" % row["fresh"])
    if system.is_committed and (row["lost"] or row["twice"]):
        wrong.append("%d acknowledged numbers were lost, %d were written twice" % (row["lost"], row["twice"]))
    if row["too_old"]:
        wrong.append("%d times a client lost a number that was acknowledged before the checkpoint" % row["too_old"])
    if len(row["returns"]) != row["deaths"]:
        wrong.append("%d of %d deaths were reported" % (len(row["returns"]), row["deaths"]))
    return wrong
