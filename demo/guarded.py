"""Code to start a program under `undying run`, to query its status, to kill it, and to wait for its restore."""
import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import time

from screen import Failure

EVERY = "500ms"
# Time limit of a wait, in seconds. Even a loaded machine needs far less time. At the limit, the demo fails.
LIMIT_S = 60
POLL_S = 0.005
# Time limit for the end of a guardian, in seconds. A guardian kills a component ten seconds after SIGTERM.
END_S = 15
BACK = re.compile(r"pid (\d+) is back at checkpoint (\d+) after ([\d.]+) ms")

alive = []


class Guarded:
    """A program under `undying run` (the subject), and the process of `undying run` (its guardian)."""

    def __init__(self, undying, folder, name, command, every=EVERY, options=()):
        os.makedirs(folder)
        self.undying, self.folder, self.name = undying, folder, name
        self.store = os.path.join(folder, "store")
        self.log = os.path.join(folder, "log")
        words = [undying, "run", "--name", name, "--every", every, *options, "--store", self.store, "--", *command]
        shown = " ".join(["--every", every, *options])
        self.words = f"undying run {shown} -- {os.path.basename(command[0])} …"
        with open(self.log, "wb") as log:
            self.guardian = subprocess.Popen(
                words, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        alive.append(self)
        self.wait("its first checkpoint", lambda: self.checkpoints())

    def ask(self, *words):
        """Runs a command of undying with --json, and returns its output. Returns None if the command fails."""
        done = subprocess.run([self.undying, *words, "--store", self.store, "--json"], timeout=LIMIT_S,
                              capture_output=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def status(self):
        return (self.ask("status", self.name) or [{}])[0]

    def pid(self):
        return self.status()["pid"]

    def checkpoints(self):
        return [one for one in self.ask("ls", self.name) or [] if one["committed"]]

    def kill(self):
        """Kills the root process of the subject. Returns the time of the kill, in seconds since 1970."""
        moment = time.time()
        os.kill(self.pid(), signal.SIGKILL)
        return moment

    def wait_back(self, deaths=1):
        """Waits for restore number `deaths`. Returns its pid, its checkpoint and its duration in seconds."""
        found = self.wait("its restore", lambda: BACK.findall(self.said())[deaths - 1:])
        pid, sequence, took = found[0]
        return int(pid), int(sequence), float(took) / 1000

    def wait(self, what, condition):
        deadline = time.monotonic() + LIMIT_S
        while not (result := condition()):
            if self.guardian.poll() is not None:
                raise Failure(f"{self.name} ended during the wait for {what}:\n{self.said()}")
            if time.monotonic() > deadline:
                raise Failure(f"{self.name}: timeout after {LIMIT_S} s in the wait for {what}:\n{self.said()}")
            time.sleep(POLL_S)
        return result

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def wait_end(self):
        """Waits for the end of the guardian. Returns its exit status, which equals the exit status of the program."""
        try:
            return self.guardian.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} did not end within {LIMIT_S} s:\n{self.said()}") from None

    def pids(self):
        return [pid for pid in [self.status().get("pid")] if pid]


def time_of(checkpoint):
    """Returns when the subject was stopped for a checkpoint, in seconds since 1970."""
    return seconds(checkpoint["time"])


def seconds(text):
    """Converts a time in the output of undying to seconds since 1970."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def end_all():
    """Ends all guardians and subjects that still run.

    After SIGTERM, a guardian ends its subject and does not restart it. After a timeout, `end_all` kills guardian and
    subject.
    """
    for one in alive:
        if one.guardian.poll() is not None:
            continue
        one.guardian.terminate()
        try:
            one.guardian.wait(END_S)
        except subprocess.TimeoutExpired:
            pids = one.pids()
            one.guardian.kill()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
