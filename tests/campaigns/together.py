#!/usr/bin/env python3
"""Do the members of a group with `together = true` go on from one moment, whichever of them dies?

The group has two members: redis, and a web server with two workers that count requests in redis over a Unix socket. The
output of the group is committed. Clients send one request after the other over one connection each, and expect the next
number in each answer: a message between the members, or between the group and a client, that is lost or doubled shows
as a wrong number.

Then the group is held for `--hold` seconds and released: the clients wait, and see no error.

In each round, after a random time, the first process of one member is killed (`--kills` rounds), or all processes of the group
at once (`--wholes` rounds).

These conditions must hold: each client gets the next number each time, no connection ends, and each death is followed by
a restore of the whole group.

Needs root and redis-server. Writes together-TAG.txt. Exits with 1 if a condition did not hold.
"""
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from campaign import HERE, ROOT, Findings, arguments, say_to

sys.path.insert(0, os.path.join(ROOT, "tests", "field"))
from lib.system import free_port  # noqa: E402

CLIENTS = 4
# Maximum time between two answers. A restore takes less than a second.
LIMIT_S = 30
SYSTEM = """[system]
name = "group"
store = "store"
[component.redis]
command = ["redis-server", "--port", "0", "--unixsocket", "{folder}/redis.sock", "--save", "", "--appendonly", "no"]
ready = {{ listen = true }}
{common}
[component.web]
command = ["python3", "{web}", "{port}", "{folder}/redis.sock", "2"]
needs = ["redis"]
ready = {{ tcp = "127.0.0.1:{port}" }}
{common}
[group.shop]
members = ["redis", "web"]
together = true
"""
COMMON = """policy = "checkpointed"
every = "50ms"
output = "committed"
restart = { max = "100000/1m", backoff = "1ms..1ms" }
"""


class Client(threading.Thread):
    """Sends requests, and checks each answer."""

    def __init__(self, port, number, limit):
        super().__init__(daemon=True)
        self.port, self.limit, self.number, self.last, self.wrong = port, limit, number, 0, None
        self.ended, self.slowest = False, 0.0

    def run(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), self.limit) as server:
                while not self.ended:
                    self.step(server)
        except (OSError, AssertionError, ValueError) as error:
            self.wrong = "client %d after %d: %r" % (self.number, self.last, error)

    def step(self, server):
        begun = time.monotonic()
        server.sendall(b"GET /c%d HTTP/1.1\r\n\r\n" % self.number)
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.split(b"\r\n\r\n")[1]:
            part = server.recv(4096)
            assert part, "the connection has ended"
            answer += part
        found = int(answer.split(b"\r\n\r\n")[1])
        assert found == self.last + 1, "the answer is %d" % found
        self.last, self.slowest = found, max(self.slowest, time.monotonic() - begun)


class Group:
    """The system under test."""

    def __init__(self, options, folder):
        self.port, self.folder = free_port(), folder
        common = COMMON + 'log = "log"\n'
        text = SYSTEM.format(folder=folder, port=self.port, common=common,
                             web=os.path.join(HERE, "together", "web.py"))
        self.file = os.path.join(folder, "system.toml")
        with open(self.file, "w") as file:
            file.write(text)
        self.command = [options.undying, "--store", os.path.join(folder, "store")]
        self.told = open(os.path.join(folder, "told"), "w")
        self.guardian = subprocess.Popen([*self.command, "up", self.file], stdin=subprocess.DEVNULL, stdout=self.told,
                                         stderr=self.told, cwd=folder)

    def status(self, name):
        said = say_to(self.command, "status", name, "--json")
        return json.loads(said.stdout)[0] if said.returncode == 0 and said.stdout else {}

    def wait_for(self, what, condition):
        end = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("waited too long for %s" % what)
            time.sleep(0.02)

    def is_ready(self):
        states = [self.status(name).get("component", {}).get("state") for name in ("redis", "web")]
        return states == ["ready", "ready"]

    def pids(self):
        """Returns the processes of each member."""
        found = {}
        for name in ("redis", "web"):
            root = self.status(name)["pid"]
            with open("/proc/%d/task/%d/children" % (root, root)) as file:
                found[name] = [root] + [int(word) for word in file.read().split()]
        return found

    def incarnation(self):
        return self.status("shop").get("incarnation", 0)

    def end(self):
        said = say_to(self.command, "down")
        self.guardian.wait(LIMIT_S)
        return said.returncode == 0


def trial(options, scratch, say):
    seed = options.seed or random.randrange(1 << 32)
    chance = random.Random(seed)
    say("seed %d" % seed)
    group = Group(options, scratch)
    group.wait_for("the group", group.is_ready)
    group.wait_for("a checkpoint", lambda: group.status("shop").get("checkpoints", 0) > 2)
    clients = [Client(group.port, number, LIMIT_S + options.hold) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    rounds = ["member"] * options.kills + ["whole"] * options.wholes
    chance.shuffle(rounds)
    killed, begun = collections.Counter(), time.monotonic()
    for kind in rounds:
        # Two deaths by an exit code without a checkpoint between them are evidence against the checkpoint before.
        taken = group.status("shop").get("checkpoints", 0)
        group.wait_for("a checkpoint", lambda: group.status("shop").get("checkpoints", 0) > taken)
        time.sleep(chance.uniform(0, 0.3))
        before, pids = group.incarnation(), group.pids()
        if kind == "member":
            name = chance.choice(sorted(pids))
            # A checkpoint between the death of a worker and the exit of its server leads to that exit again.
            victims = pids[name][:1]
        else:
            name, victims = "whole", sum(pids.values(), [])
        for pid in victims:
            # A worker can end with its server.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed[name] += 1
        group.wait_for("the restore after the death of %s" % name, lambda: group.incarnation() > before)
        group.wait_for("the members", group.is_ready)
        counts = [client.last for client in clients]
        group.wait_for("answers", lambda: any(client.wrong for client in clients)
                       or all(client.last > count for client, count in zip(clients, counts)))
        if any(client.wrong for client in clients):
            break
    if options.hold and not any(client.wrong for client in clients):
        held = say_to(group.command, "hold", "shop", "--for", "%ds" % (options.hold + LIMIT_S))
        # Answers from before the stop can still be on their way.
        time.sleep(1)
        counts = [client.last for client in clients]
        time.sleep(options.hold)
        is_still = counts == [client.last for client in clients]
        released = say_to(group.command, "release", "shop")
        group.wait_for("answers after the hold", lambda: any(client.wrong for client in clients)
                       or all(client.last > count for client, count in zip(clients, counts)))
        say("held for %d s: exit codes %d and %d, no answer meanwhile: %s" % (
            options.hold, held.returncode, released.returncode, "yes" if is_still else "no"))
    say("killed: %s, in %.0f s" % (", ".join("%s %d" % pair for pair in sorted(killed.items())),
                                   time.monotonic() - begun))
    for client in clients:
        client.ended = True
    for client in clients:
        client.join(LIMIT_S)
    wrong = [client.wrong for client in clients if client.wrong]
    say("answers: %d, all in order: %s; slowest %.2f s" % (
        sum(client.last for client in clients), "no" if wrong else "yes", max(client.slowest for client in clients)))
    for line in wrong:
        say(line)
    is_good = group.end()
    with open(group.told.name) as file:
        anew = sum("from the beginning" in line for line in file) - 2
    say("starts from the beginning after the first: %d" % anew)
    if wrong or anew:
        shutil.copy(group.told.name, os.path.join(options.out, "together-told.txt"))
    return is_good and not wrong and anew == 0 and sum(killed.values()) == len(rounds)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--wholes", type=int, default=100)
    parser.add_argument("--hold", type=int, default=60)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    findings = Findings("together", options)
    findings.run(lambda scratch: trial(options, scratch, findings.say))


main()
