"""A server in one of the modes of the campaign: without `undying`, under `undying run`, or under `undying up`.

Each class starts the server, kills its root process, and waits until it is back. `outcome` counts how the server came
back: restored from a checkpoint, or started from its beginning.
"""
import json
import os
import signal
import time

from lib.system import Wrong, descendants, is_alive, wait_for
from lib.trials import Outcome, Run, spawn

RETURN_LIMIT_S = 90
# Pause before the next attempt to start a server that could not start. Used without `undying` only.
RETRY_S = 0.2
SYSTEM = """[system]
name = "servers"
store = {store}

[component.field]
command = {command}
directory = {directory}
environment = {environment}
{keys}
ready = {{ tcp = "127.0.0.1:{port}" }}
restart = {{ max = "100000/1m", backoff = "10ms..50ms" }}
log = "server.log"
"""


class Bare:
    """The server without `undying`. It is started again after each kill."""

    def __init__(self, program, _undying, _kills):
        self.program, self.outcome, self.log, self.process = program, Outcome(), program.path("server.log"), None

    def start(self):
        self.process = spawn(self.program.command(), self.program.folder, self.program.environment(), self.log)

    def alive(self):
        """Starts the server again if it has ended, for example because an old process still holds a lock."""
        if self.process.poll() is not None:
            time.sleep(RETRY_S)
            self.start()

    def await_ready(self, what, limit_s):
        wait_for(lambda: self.alive() or self.program.is_ready(), what, limit_s)

    def await_protected(self):
        """Does nothing: no checkpoint protects the server."""

    def kill(self):
        """Kills the root process, and then the other processes of the server, as a service manager does."""
        if self.process.poll() is not None:
            return False
        below = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in filter(is_alive, below):
            os.kill(pid, signal.SIGKILL)
        return True

    def await_restart(self, _number):
        self.start()
        self.outcome.fresh += 1

    def report(self):
        return ""

    def end(self):
        """Does nothing: the process of the trial kills its descendants."""


class Guarded(Run):
    """The server under `undying run` without a policy for files."""

    def options(self):
        return ["--every", self.program.every]

    def start(self):
        program = self.program
        words = self.undying.words("run", "--name", "field", *self.options(), "--max-restarts", "100000/1m", "--",
                                   *program.command())
        self.guardian = spawn(words, program.folder, program.environment(), self.log)

    def await_protected(self):
        """Waits for a checkpoint, at most for a short time: a server that has none starts from its beginning."""
        begin = self.last_seq()
        try:
            wait_for(lambda: self.guardian.poll() is not None or self.last_seq() > begin, "a checkpoint", 2, 0.1)
        except Wrong:
            pass

    def report(self):
        """Returns what a user reads about the deaths: the table of `undying deaths`, and the log of the guardian."""
        said = self.undying.call("deaths", "field").stdout + self.undying.call("status", "field").stdout
        with open(self.log, errors="replace") as file:
            return said + file.read()

    def end(self):
        """Ends the server by SIGTERM to its guardian, as a user does."""
        self.guardian.terminate()
        wait_for(lambda: self.guardian.poll() is not None, "the end of undying", RETURN_LIMIT_S)


class Beginning(Guarded):
    """The policy that the documents advise for databases, queues, mail and DNS servers."""

    def options(self):
        return ["--restart-from", "beginning"]

    def await_protected(self):
        """Does nothing: this policy takes no checkpoints."""


class Fresh(Guarded):
    def options(self):
        return ["--every", self.program.every, "--files", "fresh"]


class Held(Guarded):
    """The server under `undying run` with delayed output."""

    def options(self):
        return ["--every", "20ms", "--output", "committed"]


class Component(Guarded):
    """The server as a component of `undying up`."""

    keys = None

    def start(self):
        program = self.program
        environment = "{ %s }" % ", ".join("%s = %s" % (name, json.dumps(value))
                                           for name, value in program.environment().items())
        text = SYSTEM.format(store=json.dumps(self.undying.store), command=json.dumps([*map(str, program.command())]),
                             directory=json.dumps(program.folder), environment=environment, keys=self.keys,
                             port=program.port)
        path = os.path.join(self.undying.folder, "system.toml")
        with open(path, "w") as file:
            file.write(text)
        self.guardian = spawn(self.undying.words("up", path), self.undying.folder, {}, self.log)


class Stateless(Component):
    keys = 'policy = "stateless"'

    def await_protected(self):
        """Does nothing: this policy takes no checkpoints."""


class Committed(Component):
    """The component is checkpointed, and its output is delayed."""

    keys = 'policy = "checkpointed"\nevery = "20ms"\noutput = "committed"'


MODES = {"bare": Bare, "run": Beginning, "fresh": Fresh, "default": Guarded, "held": Held, "stateless": Stateless,
         "committed": Committed}
