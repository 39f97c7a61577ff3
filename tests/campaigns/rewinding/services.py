"""Trials of database servers, which are killed under the load of a client. No acknowledged transaction may be lost.

A transaction moves an amount between two accounts, and inserts one row that describes it. If a transaction was executed
only in part, the rows and the accounts do not match.
"""
import datetime
import os
import random
import shutil
import sys
import time

from lib import suite
from lib.program import Wrong
from lib.system import TimeUp, end_everything, wait_for
from lib.trials import Burst, Client

from .disks import Disk
from .guarded import NAME, Guarded
from .trials import BROKEN_MAX, NO_COUNTS, SHOWN

KNOWN = suite.programs()
ACCOUNTS = 64
READY_LIMIT_S = 40
# Shortest and longest load before a kill, in seconds. The shortest is also the load after each kill.
LOAD_MIN_S, LOAD_MAX_S = 0.5, 2.5
KILLS_MAX = 6


def limit_s(setup):
    """Returns the time limit of all runs of one server, in seconds."""
    return 240 + 60 * (setup.kills + 2)


def transfer(number):
    """Returns the accounts and the amount of a transaction: (from, to, amount)."""
    source = number % ACCOUNTS
    target = (source + 1 + number * 31 % (ACCOUNTS - 1)) % ACCOUNTS
    return source, target, number * 7919 % 1009


def balances(numbers):
    """Returns the balances of all accounts after these transactions."""
    found = [0] * ACCOUNTS
    for number in numbers:
        source, target, amount = transfer(number)
        found[source] -= amount
        found[target] += amount
    return found


class Times:
    """A mixin, and the first base class of a server. Records when transactions are sent and acknowledged."""

    group, restart_on_child = "rewind", False
    # Possible targets of a kill, in addition to the guardian.
    targets = ("root",)

    def __init__(self, folder, random):
        super().__init__(folder, random)
        self.sent_at, self.acknowledged_at = {}, {}

    def put_next(self):
        number = self.sent + 1
        self.sent_at[number] = time.time()
        super().put_next()
        self.acknowledged_at[number] = time.time()

    def forgive(self, checkpoint, restored):
        """Allows the loss of transactions after a restore.

        `checkpoint` and `restored` are the times of the checkpoint and of its restore. A transaction may be missing if
        it was sent before the restore, and was not acknowledged before the checkpoint.
        """
        low = max((number for number, at in self.acknowledged_at.items() if at <= checkpoint), default=0)
        high = max((number for number, at in self.sent_at.items() if at <= restored), default=0)
        if low < high:
            self.may_lack.append((low, high))

    def own_check(self):
        """Compares the balances with the rows of the transactions. Then calls the consistency check of the program."""
        found, due = self.accounts(), balances(self.items())
        if found != due:
            wrong = [number for number in range(ACCOUNTS) if found[number:number + 1] != due[number:number + 1]]
            raise Wrong("half a transaction: account %d has %s, its rows give %d" % (
                wrong[0], found[wrong[0]:wrong[0] + 1], due[wrong[0]]))
        super().own_check()


INSERT_ACCOUNTS = "INSERT INTO account VALUES %s" % ", ".join("(%d, 0)" % number for number in range(ACCOUNTS))
MOVE = "UPDATE account SET balance = balance - %d WHERE id = %d; UPDATE account SET balance = balance + %d WHERE id = %d;"


class Mariadb(Times, KNOWN["mariadb"]):
    def first(self):
        self.ask("CREATE TABLE account (id INT PRIMARY KEY, balance BIGINT) ENGINE=InnoDB; %s;" % INSERT_ACCOUNTS)

    def put(self, number):
        source, target, amount = transfer(number)
        if self.ask("START TRANSACTION; INSERT INTO item VALUES (%d, REPEAT('%d ', 40)); %s COMMIT;" % (
                number, number * 7919 % 10007, MOVE % (amount, source, amount, target))):
            raise Wrong("the reply to a transaction contains text")

    def accounts(self):
        return [int(line) for line in self.ask("SELECT balance FROM account ORDER BY id;")]


class Postgresql(Times, KNOWN["postgresql"]):
    """After the death of a child, PostgreSQL restarts its other children and recovers. `undying` does not intervene."""

    targets = ("root", "root", "child")

    def first(self):
        self.ask("CREATE TABLE account (id int PRIMARY KEY, balance bigint); %s;" % INSERT_ACCOUNTS)

    def put(self, number):
        source, target, amount = transfer(number)
        said = self.ask("BEGIN; INSERT INTO item VALUES (%d, repeat('%d ', 40)) RETURNING number; %s COMMIT;" % (
            number, number * 7919 % 10007, MOVE % (amount, source, amount, target)))
        if said != str(number):
            raise OSError("the reply to a transaction is %r" % said)

    def accounts(self):
        return [int(word) for word in self.ask("SELECT string_agg(balance::text, ' ' ORDER BY id) FROM account;").split()]


class Etcd(Times, KNOWN["etcd"]):
    """etcd cannot add numbers. A transaction writes two keys, and either both keys or none must exist."""

    def first(self):
        pass

    def put(self, number):
        self.ask("txn", {"success": [{"requestPut": self.entry(side, number)} for side in ("item", "twin")]})

    def own_check(self):
        halves = set(self.items()) ^ set(self.numbers("twin"))
        if halves:
            raise Wrong("half a transaction: %s" % sorted(halves)[:3])
        super(Times, self).own_check()


SERVICES = {"postgresql": Postgresql, "mariadb": Mariadb, "etcd": Etcd}


# The trial ----------------------------------------------------------------------------------------------------------

def try_service(kind, disk, setup, folder, row):
    """Runs all runs of one server on one type of file system. Each run continues with the files of the previous run."""
    row.update(NO_COUNTS, why_fresh=[])
    with Disk(disk, folder) as place:
        trial = Trial(kind, setup, place, folder, row)
        trial.run_all()
        row["acknowledged"] = len(trial.program.acknowledged)
    if trial.failures:
        raise Wrong("; ".join(trial.failures[:SHOWN]))


class Trial:
    """The runs of one server in one directory. They fill in one row."""

    def __init__(self, kind, setup, place, folder, row):
        self.setup, self.row, self.place, self.stores, self.failures = setup, row, place, os.path.join(folder, "stores"), []
        self.draw, self.kind = random.Random("%s %s" % (setup.seed, kind.name)), kind
        self.make()

    def make(self):
        """Creates the server in a new directory with its initial data."""
        work = os.path.join(self.place, "work")
        shutil.rmtree(work, ignore_errors=True)
        os.mkdir(work)
        self.program, self.is_new = self.kind(work, self.draw), True
        self.program.give(work)
        self.row["version"] = self.program.version()
        self.program.prepare()

    def run_all(self):
        while self.row["runs"] == 0 or self.row["kills"] < self.setup.kills:
            self.row["runs"] += 1
            failure = self.run_one()
            if failure:
                self.failures.append("run %d: %s" % (self.row["runs"], failure))
                print("  %s, %s" % (self.program.name, self.failures[-1]), file=sys.stderr, flush=True)
                if len(self.failures) >= BROKEN_MAX:
                    return
                self.make()
        if self.row["root"] > 0 and self.row["restored"] == 0:
            self.failures.append("no death was followed by a restore")

    def run_one(self):
        """Runs the server once, with kills, and ends it by its stop signal. Returns the failure as text, or None."""
        number, failure = self.row["runs"], None
        run = Guarded(self.program, self.setup, os.path.join(self.stores, str(number)), self.row, self.draw)
        run.start()
        try:
            self.begin(run)
            history = History(run)
            for kind in self.kinds(number):
                self.one_kill(run, history, kind)
            os.kill(run.undying.status(NAME)["pid"] if run.is_protected else run.root, self.program.stop_signal)
            run.await_end(self.program.stop_limit_s, must_succeed=False)
            self.program.check_files()
        except TimeUp:
            raise
        except (Wrong, OSError, EOFError) as wrong:
            failure, self.row["differences"] = str(wrong) or repr(wrong), self.row["differences"] + 1
            self.program.close()
            end_everything()
        run.count_restarts()
        if not (failure and self.setup.keep):
            shutil.rmtree(run.undying.folder, ignore_errors=True)
        return failure

    def begin(self, run):
        self.await_ready(run, "the start")
        if self.is_new:
            with Burst(self.program):
                self.program.first()
            self.is_new = False
        run.await_checkpoints_from_now()

    def one_kill(self, run, history, kind):
        """Kills a process under load, waits for the restart, and continues the load. Then checks all transactions."""
        program = self.program
        client = Client(program)
        client.start()
        try:
            if not run.sleep(self.draw.uniform(LOAD_MIN_S, LOAD_MAX_S)) or not run.kill(kind):
                raise Wrong("the server ended by itself")
            self.await_ready(run, "a reply after the kill of the %s" % kind)
            run.sleep(LOAD_MIN_S)
        finally:
            client.over.set()
        client.stop()
        for checkpoint, restored in history.restores():
            program.forgive(checkpoint, restored)
        with Burst(program):
            program.verify()

    def await_ready(self, run, what):
        def is_ready():
            if run.has_ended():
                raise Wrong("the server ended before %s: %s" % (what, run.said()))
            return self.program.is_ready()
        wait_for(is_ready, what, READY_LIMIT_S)

    def kinds(self, number):
        """Returns the targets of the kills of a run, in order.

        In every other run, the guardian is the last target, because the guardian is not restarted.
        """
        count = min(self.setup.kills - self.row["kills"], self.draw.randint(2, KILLS_MAX))
        kinds = [self.draw.choice(self.program.targets) for _ in range(count)]
        if kinds and number % 2 == 1:
            kinds[-1] = "guardian"
        return kinds


class History:
    """The restores of one run, each with the time at which its checkpoint stopped the program."""

    def __init__(self, run):
        self.run, self.seen = run, 0

    def restores(self):
        """Returns the restores since the last call: (time of the checkpoint, time of the restore)."""
        events = self.run.undying.lines("events", NAME)
        found, taken = [], {}
        for event in events:
            if event["event"] == "checkpoint":
                taken[event["seq"]] = at(event)
            if event["event"] == "restored":
                found.append((taken.get(event["seq"]), at(event)))
        new, self.seen = found[self.seen:], len(found)
        if any(checkpoint is None for checkpoint, _ in new):
            raise Wrong("no event reports a checkpoint that was restored")
        return new


def at(event):
    """Returns the time of an event, in seconds since 1970."""
    return datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()
