"""A program under `undying run`: starting it, asking how it is, killing it, waiting until it is back."""
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
# Far above what a loaded machine needs: reaching one means that something hangs.
LIMIT_S = 60
POLL_S = 0.005
# A component that ignores SIGTERM is killed after ten seconds.
END_S = 15
BACK = re.compile(r"pid (\d+) is back at checkpoint (\d+) after ([\d.]+) ms")

alive = []


class Guarded:
    """One subject with its guardian."""

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
        """What a verb of undying answers with --json."""
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
        """Kills the subject; gives the moment."""
        moment = time.time()
        os.kill(self.pid(), signal.SIGKILL)
        return moment

    def wait_back(self, deaths=1):
        """Waits for so many returns; gives pid, checkpoint and seconds of the last."""
        found = self.wait("its return", lambda: BACK.findall(self.said())[deaths - 1:])
        pid, sequence, took = found[0]
        return int(pid), int(sequence), float(took) / 1000

    def wait(self, what, condition):
        deadline = time.monotonic() + LIMIT_S
        while not (result := condition()):
            if self.guardian.poll() is not None:
                raise Failure(f"{self.name} ended before {what}:\n{self.said()}")
            if time.monotonic() > deadline:
                raise Failure(f"no sign of {what} of {self.name} within {LIMIT_S} s:\n{self.said()}")
            time.sleep(POLL_S)
        return result

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def wait_end(self):
        """The guardian's exit status, which is the program's own."""
        try:
            return self.guardian.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} does not end:\n{self.said()}") from None

    def pids(self):
        return [pid for pid in [self.status().get("pid")] if pid]


def time_of(checkpoint):
    """When the subject was stopped for a checkpoint, in seconds since 1970."""
    return seconds(checkpoint["time"])


def seconds(text):
    """A time as undying writes it, in seconds since 1970."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def end_all():
    """Ends what still runs: first the programs, by a signal after which nothing restarts them."""
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
