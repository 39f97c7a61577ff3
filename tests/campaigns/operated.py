#!/usr/bin/env python3
"""Which errors do clients see while two systems of five components are operated for ten minutes?

Each system has a checkpointed server, a checkpointed server with `output = "committed"`, a stateless server that is a
client of the first, a server that closes its listening socket a second before it ends, and a server on a Unix socket.
Its store is on a file system of its own. Clients send lines to each component all the time, over kept and over new
connections.

A script operates each system. In random order, with a printed seed, it restarts a component, from its beginning or with
its state, changes its table and
reloads, stops and starts it, complains about it, kills it, kills the guardian and starts another, fills the file system
of the store for some seconds, and reloads files with mistakes.

These conditions must hold:

- Each order ends with the expected exit code, and the component is ready again.
- A checkpointed component that is restarted with its state (`restart --restore`) keeps its pid and all connections. Any
  other component refuses this order with exit code 3, and continues.
- A file with a mistake is refused with exit code 2, and no process ends.
- Clients see no error that docs/operating does not announce. Announced are: refused connections while a component is
  stopped, the end of accepted connections at the end of a component, and a missing file of a Unix socket at its end.

Needs root. Writes operated-TAG.txt. Exits with 1 if a condition did not hold.
"""
import collections
import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

from campaign import HERE, ROOT, Findings, arguments, say_to
from operating.clients import Announced, Client

sys.path.insert(0, os.path.join(ROOT, "tests", "field"))
from lib.system import Wrong, free_port, wait_for  # noqa: E402

COMPONENTS = ("kept", "held", "front", "slow", "local")
CHECKPOINTED = ("kept", "held")
REFUSED, NO_FILE, ENDED = "connect: ECONNREFUSED", "connect: ENOENT", "ended"
# Space for the stores of both checkpointed servers, so that only the filler fills the file system.
STORE_MIB = 1000
READY_S = 90
# Maximum time until a component is protected again after space was freed.
PROTECTED_S = 60
# A wrong change of the file: the words that are replaced, the replacement, and a part of the message.
MISTAKES = (('policy = "stateless"', 'polcy = "stateless"', "unknown key"),
            ('policy = "stateless"', 'policy = "stateless"\nuser = "nobody-here"', "`user` of component"),
            ('command = ["python3"', 'command = ["no-such-program"', "`command` of component"),
            ('policy = "stateless"', 'policy = "stateless"\ndirectory = "/nowhere"', "`directory` of component"))


class System:
    """One system with its clients and its operator."""

    def __init__(self, options, name, folder, seed, say):
        self.options, self.name, self.folder, self.say = options, name, folder, say
        self.random, self.counts, self.wrong = random.Random("%s %s" % (seed, name)), collections.Counter(), []
        self.file, self.mount = os.path.join(folder, "system.toml"), os.path.join(folder, "mount")
        self.store, self.changes = os.path.join(self.mount, "store"), collections.Counter()
        self.address = {name: free_port() for name in COMPONENTS}
        self.address["local"] = os.path.join(folder, "socket")
        self.announced, self.guardian, self.can_fill = Announced(), None, False
        # The longest time until the checkpointed components were protected again after space was freed, in seconds.
        self.protected, self.began = 0.0, time.monotonic()

    def make(self):
        image = os.path.join(self.folder, "image")
        os.makedirs(self.mount)
        with open(image, "wb") as file:
            file.truncate(STORE_MIB << 20)
        steps = (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", "loop", image, self.mount])
        self.can_fill = all(subprocess.run(words).returncode == 0 for words in steps)
        if not self.can_fill:
            self.say("unsupported: a file system on a loop device, so no store is filled")
        self.write(self.text())
        self.up()
        for component in COMPONENTS:
            self.await_ready(component)

    def text(self):
        server = os.path.join(HERE, "operating", "server.py")
        more = {"kept": [], "held": [], "front": ["--behind", str(self.address["kept"])], "slow": ["--quit", "1"],
                "local": []}
        keys = {"kept": 'policy = "checkpointed"\nevery = "50ms"',
                "held": 'policy = "checkpointed"\nevery = "30ms"\noutput = "committed"',
                "front": 'policy = "stateless"\nneeds = ["kept"]', "slow": 'policy = "stateless"',
                "local": 'policy = "stateless"'}
        text = '[system]\nname = "%s"\nstore = "%s"\n' % (self.name, self.store)
        for name in COMPONENTS:
            words = ["python3", server, str(self.address[name]), *more[name]]
            ready = "{ listen = true }" if name == "local" else '{ tcp = "127.0.0.1:%d" }' % self.address[name]
            text += ('\n[component.%s]\ncommand = %s\n%s\nready = %s\nlog = "%s"\nrestart = { max = "1000/1m", backoff = '
                     '"10ms..100ms" }\nenvironment = { CHANGE = "%d" }\n') % (
                name, json.dumps(words), keys[name], ready, os.path.join(self.folder, name + ".log"), self.changes[name])
        return text

    def write(self, text):
        with open(self.file + ".new", "w") as file:
            file.write(text)
        os.rename(self.file + ".new", self.file)

    def up(self):
        with open(os.path.join(self.folder, "up.log"), "ab") as log:
            self.guardian = subprocess.Popen([self.options.undying, "up", self.file], stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=log, start_new_session=True)

    def order(self, *words, code=0):
        said = say_to([self.options.undying], *words, "--store", self.store)
        if said.returncode != code:
            raise Wrong("%s: exit code %d: %s" % (" ".join(words), said.returncode, said.stderr.strip()))
        return said.stderr

    def status(self, name):
        said = say_to([self.options.undying], "status", name, "--json", "--store", self.store)
        return json.loads(said.stdout)[0] if said.returncode == 0 else {}

    def await_ready(self, name, pid=None):
        """Waits until a component is ready, in another process than `pid`."""
        def is_ready():
            status = self.status(name)
            return status.get("component", {}).get("state") == "ready" and status["pid"] != pid
        wait_for(is_ready, "%s is ready" % name, READY_S, 0.1)

    def pid(self, name):
        return self.status(name)["pid"]

    def pids(self):
        return [self.pid(name) for name in COMPONENTS]

    def ends(self, name, more=()):
        return self.announced.open(name, {ENDED, NO_FILE, *more})

    # The operations. Each gets a component.

    def restart(self, name):
        window = self.ends(name)
        self.order("restart", name)
        window[1] = time.monotonic()

    def restart_with_state(self, name):
        before = self.status(name)
        if name in CHECKPOINTED:
            # No error is announced.
            self.order("restart", "--restore", name)
            wait_for(lambda: self.status(name).get("incarnation", 0) > before["incarnation"],
                     "the next incarnation of " + name, READY_S, 0.1)
            self.await_ready(name)
        elif "no checkpoints are taken" not in self.order("restart", "--restore", name, code=3):
            raise Wrong("%s is refused for another reason" % name)
        if self.pid(name) != before["pid"]:
            raise Wrong("%s has another pid after a restart with its state" % name)

    def reload(self, name):
        before, window = self.pid(name), self.ends(name)
        self.changes[name] += 1
        self.write(self.text())
        self.order("reload")
        self.await_ready(name, before)
        window[1] = time.monotonic()

    def stop_and_start(self, name):
        # The server behind does not answer meanwhile.
        windows = [self.ends(name, {REFUSED})]
        if name == "kept":
            windows.append(self.announced.open("front", {"answer: b'the server behind does not answer\\n'"}))
        self.order("stop", name)
        time.sleep(self.random.uniform(0, 1))
        self.order("start", name)
        for window in windows:
            window[1] = time.monotonic()

    def complain(self, name):
        self.kill_by(name, lambda: self.order("complain", name, "--why", "slow", "--weight", "2"))

    def kill(self, name):
        self.kill_by(name, lambda: os.kill(self.pid(name), signal.SIGKILL))

    def kill_by(self, name, act):
        """Kills a component by calling `act`. A restored process has the pid of the killed process."""
        before, window = self.status(name)["incarnation"], self.ends(name)
        act()
        wait_for(lambda: self.status(name).get("incarnation", 0) > before, "the next incarnation of " + name, READY_S, 0.1)
        self.await_ready(name)
        window[1] = time.monotonic()

    def replace_guardian(self, _):
        before = self.pids()
        self.guardian.kill()
        self.guardian.wait()
        time.sleep(self.random.uniform(0, 1))
        self.up()
        wait_for(lambda: all(self.status(name)["guardian"] == self.guardian.pid for name in COMPONENTS),
                 "the next guardian", READY_S, 0.1)
        for name in COMPONENTS:
            self.await_ready(name)
        if self.pids() != before:
            raise Wrong("a component was restarted with the guardian")

    def fill_store(self, name):
        filler = os.path.join(self.mount, "filler")
        with open(filler, "wb") as file:
            for size in (1 << 30, 1 << 24, 1 << 20, 1 << 12):
                self.grow(file, size)
        time.sleep(self.random.uniform(2, 8))
        if name in ("front", "slow", "local"):
            self.restart(name)
        os.unlink(filler)
        begun = time.monotonic()
        for checkpointed in CHECKPOINTED:
            wait_for(lambda: not self.status(checkpointed)["unprotected_because"],
                     "%s is protected again after the file system was full" % checkpointed, PROTECTED_S, 0.1)
        self.protected = max(self.protected, time.monotonic() - begun)

    @staticmethod
    def grow(file, size):
        """Allocates blocks of this size, until none is left."""
        try:
            while True:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def reload_mistake(self, _):
        before, (words, wrong, message) = self.pids(), self.random.choice(MISTAKES)
        self.write(self.text().replace(words, wrong))
        for said in (self.order("reload", code=2), say_to([self.options.undying], "check", self.file).stderr):
            if message not in said:
                raise Wrong("the message lacks %r: %s" % (message, said))
        if self.pids() != before:
            raise Wrong("a refused file has changed a process")
        self.write(self.text())
        self.order("reload")

    def operate(self, until):
        operations = [self.restart, self.restart_with_state, self.reload, self.stop_and_start, self.complain, self.kill,
                      self.replace_guardian, self.reload_mistake, *[self.fill_store] * self.can_fill]
        while time.monotonic() < until:
            batch = list(operations)
            self.random.shuffle(batch)
            for operation in batch:
                if time.monotonic() < until:
                    name = self.random.choice(COMPONENTS)
                    self.say("%.1f s: %s: %s %s" % (self.seconds(time.monotonic()), self.name, operation.__name__, name))
                    operation(name)
                    self.counts[operation.__name__] += 1
                    time.sleep(self.random.uniform(0, 1))

    def seconds(self, at):
        """Returns the time since the begin of the campaign, in seconds."""
        return at - self.began

    def run(self, until):
        clients = []
        try:
            self.make()
            clients = [Client(name, self.address[name], keeps) for name in COMPONENTS for keeps in (False, True)]
            for client in clients:
                client.start()
            self.operate(until)
        except (Wrong, OSError, KeyError, ValueError, subprocess.SubprocessError) as problem:
            self.wrong.append("%s: %s: %s" % (self.name, type(problem).__name__, problem))
        finally:
            for client in clients:
                client.is_over.set()
            for client in clients:
                client.join(90)
            self.end()
        self.judge(clients)

    def judge(self, clients):
        for client in clients:
            kind = "kept" if client.keeps else "new"
            said = collections.Counter(what for _, what in client.errors)
            aliens = [(at, what, detail) for (at, what), detail in zip(client.errors, client.details)
                      if not self.announced.has(client.component, at, what)]
            alien = collections.Counter(what for _, what, _ in aliens)
            self.say("%s %s, %s connections: %d answers, announced errors %s, longest %.0f ms" % (
                self.name, client.component, kind, client.answered, dict(said - alien), client.longest * 1000))
            if alien or not client.answered:
                first = ""
                if aliens:
                    at, _, (error, opened, asked) = aliens[0]
                    first = ", the first after %.1f s: %s, connection opened after %.1f s, question after %.1f s" % (
                        self.seconds(at), error, self.seconds(opened), self.seconds(asked))
                self.wrong.append("%s %s, %s connections: errors that are not announced: %s%s" % (
                    self.name, client.component, kind, dict(alien), first))

    def end(self):
        if self.guardian:
            say_to([self.options.undying], "down", "--store", self.store)
            try:
                self.guardian.wait(60)
            except subprocess.TimeoutExpired:
                self.wrong.append("%s: the guardian does not end" % self.name)
                self.guardian.kill()
        if self.can_fill:
            subprocess.run(["umount", "-l", self.mount], check=False)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long each system is operated [600]")
    parser.add_argument("--seed", type=int, help="seed of an earlier run, to repeat its order of operations")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    findings = Findings("operated", options)
    findings.say("seed %d" % seed)

    def work(scratch):
        until = time.monotonic() + options.seconds
        systems = []
        for name in ("one", "two"):
            folder = os.path.join(scratch, name)
            os.mkdir(folder)
            systems.append(System(options, name, folder, seed, findings.say))
        threads = [threading.Thread(target=system.run, args=(until,)) for system in systems]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for system in systems:
            findings.say("%s: %s; protected again at most %.1f s after a full disk" % (
                system.name, dict(system.counts), system.protected))
            for wrong in system.wrong:
                findings.say("WRONG: " + wrong)
                log = os.path.join(system.folder, "up.log")
                with open(log, errors="replace") as file, open("%s-%s.log" % (findings.base, system.name), "w") as copy:
                    copy.write(file.read())
        return not any(system.wrong for system in systems)

    findings.run(work)


if __name__ == "__main__":
    main()
