"""What a program of the field suite is: a service with clients, or a job with an end.

A program file in `programs/` has one class for each row of the table. A `Service` says how it starts, how a client
writes one item and waits for the acknowledgement, and which items it has. A `Job` says how it starts and what its
output must be. Everything else (kills, restores, comparisons) is the same for all and lies in `trials.py`.
"""
import os
import pwd
import re
import shutil
import subprocess
import sys
import time

from .system import POLL_S, Line, Unsupported, Wrong, free_port, is_open, wait_for


class Program:
    """Common parts. `folder` is a directory of the program's own; it is removed at the end."""

    # The row's name, and one of: server, database, language, desktop, build, science.
    name, group = None, None
    # Commands that must exist, each with the Debian package that has it.
    needs = {}
    # Debian packages without a command of their own.
    extra_packages = ()
    # The user that it runs as, for programs that refuse root.
    user = None
    # Time between two checkpoints under `run`.
    every = "200ms"
    # What a restart does with files: the default of `undying run`.
    files = ()
    # The time limit of both trials together, and of a start.
    limit_s, start_limit_s = 120, 30
    # Whether it belongs to `make test`.
    quick = False

    def __init__(self, folder, random):
        self.folder, self.random, self.port = folder, random, free_port()

    def prepare(self):
        """Writes configurations and initial data. Not part of what `undying` sees."""

    def command(self):
        """The program and its arguments."""
        raise NotImplementedError

    def environment(self):
        """What is added to the environment of the program."""
        return {}

    def version(self):
        """The program's version in one word, for the report."""
        command = next(iter(self.needs), None)
        package = self.needs.get(command)
        if package and shutil.which("dpkg-query"):
            done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
            if done.returncode == 0 and done.stdout:
                return done.stdout
        return ""

    def is_ready(self):
        return is_open(self.port)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, text, mode=0o644):
        """Writes a file of the program's folder, owned by the program's user."""
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        self.give(path)
        return path

    def make_folder(self, name):
        path = self.path(name)
        os.makedirs(path, exist_ok=True)
        self.give(path)
        return path

    def give(self, path):
        if self.user:
            account = pwd.getpwnam(self.user)
            os.chown(path, account.pw_uid, account.pw_gid)

    def as_user(self, *words):
        """The words with the user and group of the program; `setpriv` execs, so that the pid stays."""
        if not self.user:
            return [*map(str, words)]
        return ["setpriv", "--reuid", self.user, "--regid", self.user, "--clear-groups", *map(str, words)]

    def tool(self, *words, limit_s=60, what=None):
        """Runs a command to its end and returns its output; a failure is the program's."""
        done = subprocess.run(self.as_user(*words), capture_output=True, text=True, errors="replace", timeout=limit_s,
                              stdin=subprocess.DEVNULL, cwd=self.folder, env={**os.environ, **self.environment()})
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
            raise Wrong("%s ended with %d: %s" % (what or words[0], done.returncode, " / ".join(said)))
        return done.stdout


class Service(Program):
    """A program that answers clients. Items are the numbers 1, 2, 3 …; `put` returns once one is acknowledged."""

    # Its clients have answers that came after the checkpoint, so that its files may not go back behind them.
    files = ("--files", "fresh")

    # Whether an acknowledged item must survive the loss of the memory.
    durable = False
    # Items of one burst before a checkpoint, and the pause of the client after each one.
    burst, pace_s = 60, 0.002
    # How long after the acknowledgement of an item the program may still write it.
    settle_limit_s = 0
    # Whether `stop_signal` ends it with success.
    stop_signal = 15
    stop_limit_s = 20

    def __init__(self, folder, random):
        super().__init__(folder, random)
        self.sent, self.acknowledged, self.may_lack = 0, set(), []
        # Whatever `open` made that has a method `close`.
        self.connection = None

    def open(self):
        """Opens the connection of a client: by default, one that sends and receives lines."""
        self.connection = Line(self.port)

    def close(self):
        """Closes it, whatever its state."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def put(self, number):
        raise NotImplementedError

    def items(self):
        """A list of the numbers that the program has."""
        raise NotImplementedError

    def own_check(self):
        """The program's own checker, while it runs."""

    def check_files(self):
        """The program's own checker of its files, after it has ended."""

    def put_next(self):
        self.sent += 1
        number = self.sent
        self.put(number)
        self.acknowledged.add(number)

    def verify(self):
        """Compares what the program has with what it acknowledged, then asks its own checker."""
        due = {number for number in self.acknowledged
               if not any(low < number <= high for low, high in self.may_lack)}
        deadline = time.monotonic() + self.settle_limit_s
        found = list(self.items())
        while not due.issubset(found) and time.monotonic() < deadline:
            time.sleep(POLL_S)
            found = list(self.items())
        present = set(found)
        if len(found) != len(present):
            raise Wrong("%d items are there twice" % (len(found) - len(present)))
        invented = [number for number in present if not 0 < number <= self.sent]
        if invented:
            raise Wrong("items that no client sent: %s" % invented[:5])
        missing = sorted(due - present)
        if missing:
            raise Wrong("%d of %d acknowledged items are lost, the first is %d, the last %d" % (
                len(missing), len(due), missing[0], missing[-1]))
        self.own_check()


class WebService(Service):
    """A service whose items are requests; each must be answered with `body` and be in the access log once."""

    # Servers write the line of a request after its answer.
    settle_limit_s = 2

    def open(self):
        """Each request has a connection of its own."""

    def put(self, number):
        import http.client
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            client.request("GET", self.target(number))
            answer = client.getresponse()
            body = answer.read().decode(errors="replace")
        except http.client.HTTPException as failure:
            raise OSError("HTTP: %r" % failure) from failure
        finally:
            client.close()
        if answer.status in (502, 503, 504):
            raise OSError("status %d" % answer.status)
        if answer.status != 200 or body.strip() != self.body(number):
            raise Wrong("request %d was answered with %d %r" % (number, answer.status, body[:80]))

    def target(self, number):
        return "/page.txt?item=%d" % number

    def body(self, number):
        return "field"

    def log(self):
        """The path of the access log."""
        return self.path("access.log")

    def items(self):
        """The numbers that the access log names."""
        with open(self.log(), errors="replace") as file:
            return [int(number) for number in re.findall(r"[?&/]item=(\d+)", file.read())]


# Jobs ---------------------------------------------------------------------------------------------------------------

# Each job computes `s = (s * 1021 + i) % 1000003` for i = 1, 2, 3 … and appends the line `i s` to its progress file.
FACTOR, MODULUS = 1021, 1000003


class Job(Program):
    """A program with an end. By default it appends the lines of the common recurrence to `progress.txt`."""

    steps, step_s = 90, 0.04
    # What the environment variable of a script's arguments are: steps, seconds per step, the progress file.
    source, source_name = "", "job.txt"

    def prepare(self):
        if self.source:
            self.write(self.source_name, self.source)

    def command(self):
        return self.from_empty(*self.program())

    def program(self):
        raise NotImplementedError

    def from_empty(self, *words):
        """The command begins with an empty progress file, also when it is started again."""
        return ["sh", "-c", ': >"$1"; shift; exec "$@"', "job", self.path("progress.txt"), *map(str, words)]

    def environment(self):
        return {"FIELD_STEPS": str(self.steps), "FIELD_STEP_S": str(self.step_s), "FIELD_OUT": self.path("progress.txt")}

    def progress(self):
        """How far it is, from 0 to 1."""
        try:
            with open(self.path("progress.txt"), "rb") as file:
                return file.read().count(b"\n") / self.steps
        except OSError:
            return 0.0

    def expected(self):
        value, lines = 1, []
        for step in range(1, self.steps + 1):
            value = (value * FACTOR + step) % MODULUS
            lines.append("%d %d" % (step, value))
        return lines

    def check_output(self):
        with open(self.path("progress.txt"), errors="replace") as file:
            found = file.read().splitlines()
        due = self.expected()
        if found == due:
            return
        at = next((at for at, (one, other) in enumerate(zip(found, due)) if one != other), min(len(found), len(due)))
        line = found[at] if at < len(found) else "nothing"
        raise Wrong("%d lines instead of %d; line %d is `%s`, not `%s`" % (
            len(found), len(due), at + 1, line[:60], due[at] if at < len(due) else "nothing"))


def python_with(module):
    """A Python that has the module."""
    for python in (sys.executable, "/usr/bin/python3"):
        if python and os.path.exists(python) and subprocess.run(
                [python, "-c", "import " + module], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0:
            return os.path.realpath(python)
    raise Unsupported("a Python with " + module)


__all__ = ["FACTOR", "MODULUS", "Job", "Line", "Program", "Service", "Unsupported", "WebService", "Wrong", "python_with",
           "wait_for"]
