"""The trial of a server in one mode: clients store items while the server is killed, and all items are looked up."""
import copy
import os
import random
import time

from lib import trials
from lib.system import Wrong, wait_for
from lib.undying import Undying

from .guards import MODES, RETURN_LIMIT_S

CLIENTS = 3
# Longest time from the first replies after a return of the server, or from the next checkpoint, to the next kill. A part
# of the kills is early: it does not wait for a checkpoint.
KILL_SPREAD_S, EARLY_SPREAD_S, EARLY_SHARE = 1.5, 0.1, 0.4
# Each client stores at least this number of items between two kills. Longest time for this.
STORED_MIN, STORED_LIMIT_S = 1, 60
LIMIT_FLOOR_S, LIMIT_PER_KILL_S = 240, 60


def share_of(program, number):
    """Returns a program for client `number`, which stores the items number + 1, number + 1 + CLIENTS …"""
    one = copy.copy(program)
    one.acknowledged, one.sent = set(), number + 1 - CLIENTS

    def put_next():
        one.sent += CLIENTS
        one.put(one.sent)
        one.acknowledged.add(one.sent)
    one.put_next = put_next
    return one


class Trial:
    def __init__(self, kind, mode, options, folder, row):
        place, own = os.path.join(folder, "p"), os.path.join(folder, "undying")
        os.mkdir(place)
        os.mkdir(own, 0o700)
        self.draw, self.row, self.kills = random.Random("%s %s %s" % (options.seed, kind.name, mode)), row, options.kills
        self.program = kind(place, self.draw)
        self.program.prepare()
        row["version"] = self.program.version()
        self.guard = MODES[mode](self.program, Undying(options.undying, own), options.kills)
        self.shares = [share_of(self.program, number) for number in range(CLIENTS)]
        self.clients = [trials.Client(share) for share in self.shares]
        self.lost_at = {}

    def run(self):
        guard, program = self.guard, self.program
        guard.start()
        guard.await_ready("the start", program.start_limit_s)
        for client in self.clients:
            client.start()
        try:
            for number in range(1, self.kills + 1):
                self.one_kill(number)
            self.await_stored("a reply to each client after the last kill")
        finally:
            for client in self.clients:
                client.over.set()
            self.row.update(restored=guard.outcome.restored, fresh=guard.outcome.fresh)
        for client in self.clients:
            client.stop()
        self.look_up("the end", program.settle_limit_s)
        guard.end()

    def one_kill(self, number):
        self.await_stored("replies before kill %d" % number)
        if self.draw.random() < EARLY_SHARE:
            time.sleep(self.draw.uniform(0, EARLY_SPREAD_S))
        else:
            self.guard.await_protected()
            time.sleep(self.draw.uniform(0, KILL_SPREAD_S))
        acknowledged = self.acknowledged()
        wait_for(self.guard.kill, "a process to kill", RETURN_LIMIT_S)
        self.row["kills"] = number
        self.guard.await_restart(number)
        self.guard.await_ready("a reply after kill %d" % number, RETURN_LIMIT_S)
        if not self.program.settle_limit_s:
            self.look_up("kill %d" % number, 0, acknowledged)

    def await_stored(self, what):
        before = [len(share.acknowledged) for share in self.shares]
        wait_for(lambda: all(len(share.acknowledged) >= old + STORED_MIN or client.failure
                             for share, old, client in zip(self.shares, before, self.clients)), what, STORED_LIMIT_S)
        for client in self.clients:
            if client.failure:
                raise client.failure

    def acknowledged(self):
        return set().union(*(share.acknowledged for share in self.shares))

    def look_up(self, when, limit_s, due=None):
        """Counts acknowledged items that the server does not have. `lost_at` has the moments of their loss."""
        due, deadline = self.acknowledged() if due is None else due, time.monotonic() + limit_s
        while True:
            missing = due - set(wait_for(self.items, "the list of items after " + when, RETURN_LIMIT_S))
            if not missing or time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        for number in missing:
            self.lost_at.setdefault(number, when)
        self.row.update(acknowledged=len(self.acknowledged()), lost=len(self.lost_at))

    def items(self):
        with trials.Burst(self.program):
            return list(self.program.items()) or [0]


def work(kind, mode, options, folder, row):
    trial = Trial(kind, mode, options, folder, row)
    try:
        trial.run()
    except Wrong as problem:
        row.update(verdict="broken", reason=str(problem))
    if trial.lost_at and (mode != "default" or kind.syncs):
        moments = sorted(set(trial.lost_at.values()))
        row.update(verdict="broken", reason="%d acknowledged requests are lost, found after %s: %s; %s" % (
            len(trial.lost_at), ", ".join(moments), sorted(trial.lost_at)[:8], row["reason"]))
    row["said"] = trial.guard.report()
