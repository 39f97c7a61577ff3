"""The base classes of the programs: `Service` answers clients, and `Job` ends by itself.

Each file in `programs/` has one class for each program. A `Service` defines how the program starts, how a client writes
one item and waits for the acknowledgement, and how the items are listed. A `Job` defines how the program starts, and
which output it must have. All other steps (kills, restores, comparisons) are the same for all programs, in `trials.py`.
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
    """The common base class. `folder` is the directory of the program, which is removed at the end."""

    # Name of the program, and its group: server, database, language, desktop, build or science.
    name, group = None, None
    # Commands that must exist, each with its Debian package.
    needs = {}
    # Required Debian packages without a command.
    extra_packages = ()
    # The user of the process, for programs that refuse to run as root.
    user = None
    # Time between two checkpoints under `undying run`.
    every = "200ms"
    # The option --files of `undying run`. Empty: the default of `undying run`.
    files = ()
    # Time limit of each trial, and of a start, in seconds.
    limit_s, start_limit_s = 120, 30
    # Whether `make test` tests the program.
    quick = False

    def __init__(self, folder, random):
        self.folder, self.random, self.port = folder, random, free_port()

    def prepare(self):
        """Writes configuration files and initial data. It is called before `undying` is used."""

    def command(self):
        """Returns the command line of the program."""
        raise NotImplementedError

    def environment(self):
        """Returns the environment variables that are added for the program."""
        return {}

    def version(self):
        """Returns the version of the program in one word, for the report."""
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
        """Writes a file in the directory of the program. The user of the program owns the file."""
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
        """Returns a command line that runs `words` as the user of the program.

        `setpriv` replaces itself by the command (execve(2)), so the pid stays the same.
        """
        if not self.user:
            return [*map(str, words)]
        return ["setpriv", "--reuid", self.user, "--regid", self.user, "--clear-groups", *map(str, words)]

    def tool(self, *words, limit_s=60, what=None):
        """Runs a command to its end, and returns its output. Raises Wrong if the command fails."""
        done = subprocess.run(self.as_user(*words), capture_output=True, text=True, errors="replace", timeout=limit_s,
                              stdin=subprocess.DEVNULL, cwd=self.folder, env={**os.environ, **self.environment()})
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
            raise Wrong("%s ended with %d: %s" % (what or words[0], done.returncode, " / ".join(said)))
        return done.stdout


class Service(Program):
    """A program that answers clients. Items are the numbers 1, 2, 3 …"""

    # A client can have replies from after the checkpoint. A rollback of the files would lose the data of these replies.
    files = ("--files", "fresh")

    # Whether acknowledged items must survive a start from the beginning, because the program stores them on disk.
    durable = False
    # Number of items that a client writes in a burst of the trial `one-shot`. Pause of the client after each item in
    # the trial `run`, in seconds.
    burst, pace_s = 60, 0.002
    # Time after the acknowledgement of an item until the program must list the item, in seconds.
    settle_limit_s = 0
    # The signal that ends the program without a restart by `undying run`. Time limit of this end, in seconds.
    stop_signal = 15
    stop_limit_s = 20

    def __init__(self, folder, random):
        super().__init__(folder, random)
        self.sent, self.acknowledged, self.may_lack = 0, set(), []
        # The connection that `open` has created. It has a method `close`.
        self.connection = None

    def open(self):
        """Opens the connection of a client. By default, it is a TCP connection that sends and receives lines."""
        self.connection = Line(self.port)

    def close(self):
        """Closes the connection, in any state."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def put(self, number):
        """Writes one item, and returns after the acknowledgement."""
        raise NotImplementedError

    def items(self):
        """Returns the list of the items that the program has."""
        raise NotImplementedError

    def own_check(self):
        """Calls the consistency check of the program, while the program runs."""

    def check_files(self):
        """Calls the consistency check for the files of the program, after the program has ended."""

    def put_next(self):
        self.sent += 1
        number = self.sent
        self.put(number)
        self.acknowledged.add(number)

    def verify(self):
        """Compares the items of the program with the acknowledged items. Then calls `own_check`."""
        due = {number for number in self.acknowledged
               if not any(low < number <= high for low, high in self.may_lack)}
        deadline = time.monotonic() + self.settle_limit_s
        found = list(self.items())
        while not due.issubset(found) and time.monotonic() < deadline:
            time.sleep(POLL_S)
            found = list(self.items())
        present = set(found)
        if len(found) != len(present):
            raise Wrong("%d items exist twice" % (len(found) - len(present)))
        invented = [number for number in present if not 0 < number <= self.sent]
        if invented:
            raise Wrong("items that no client sent: %s" % invented[:5])
        missing = sorted(due - present)
        if missing:
            raise Wrong("%d of %d acknowledged items are lost, the first is %d, the last %d" % (
                len(missing), len(due), missing[0], missing[-1]))
        self.own_check()


class WebService(Service):
    """A web server. An item is a request. The reply must be `body`, and the access log must have the request once."""

    # Servers write the line of a request to the access log after the reply.
    settle_limit_s = 2

    def open(self):
        """Does nothing: each request opens a connection."""

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
            raise Wrong("the reply to request %d is %d %r" % (number, answer.status, body[:80]))

    def target(self, number):
        return "/page.txt?item=%d" % number

    def body(self, number):
        return "field"

    def log(self):
        """Returns the path of the access log."""
        return self.path("access.log")

    def items(self):
        """Returns the numbers of the requests in the access log."""
        with open(self.log(), errors="replace") as file:
            return [int(number) for number in re.findall(r"[?&/]item=(\d+)", file.read())]


# Jobs ---------------------------------------------------------------------------------------------------------------

# The common recurrence: `s = (s * 1021 + i) % 1000003` for i = 1, 2, 3 …, with s = 1 at the beginning. In each step,
# most jobs append the line `i s` to their file `progress.txt`.
FACTOR, MODULUS = 1021, 1000003


class Job(Program):
    """A program that ends by itself. By default, it appends the results of the common recurrence to `progress.txt`."""

    # Number of steps, and seconds per step. The environment of a script has both, and the path of `progress.txt`.
    steps, step_s = 90, 0.04
    # Text and file name of the script.
    source, source_name = "", "job.txt"

    def prepare(self):
        if self.source:
            self.write(self.source_name, self.source)

    def command(self):
        return self.from_empty(*self.program())

    def program(self):
        raise NotImplementedError

    def from_empty(self, *words):
        """Returns a command line that empties `progress.txt` and runs `words`.

        A start from the beginning therefore begins with an empty file.
        """
        return ["sh", "-c", ': >"$1"; shift; exec "$@"', "job", self.path("progress.txt"), *map(str, words)]

    def environment(self):
        return {"FIELD_STEPS": str(self.steps), "FIELD_STEP_S": str(self.step_s), "FIELD_OUT": self.path("progress.txt")}

    def progress(self):
        """Returns the completed fraction of the work, from 0 to 1."""
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
    """Returns the path of a Python that has the module."""
    for python in (sys.executable, "/usr/bin/python3"):
        if python and os.path.exists(python) and subprocess.run(
                [python, "-c", "import " + module], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0:
            return os.path.realpath(python)
    raise Unsupported("a Python with " + module)


__all__ = ["FACTOR", "MODULUS", "Job", "Line", "Program", "Service", "Unsupported", "WebService", "Wrong", "python_with",
           "wait_for"]
