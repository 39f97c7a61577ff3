"""Calls the verbs of `undying`, with a separate store."""
import json
import os
import re
import subprocess
import time

from .system import Refused, Wrong

REFUSED = 3
# A refusal is transient if its help suggests another attempt. Maximum number of attempts.
MOMENTARY = re.compile(r"try again|retry", re.IGNORECASE)
ATTEMPTS_MAX = 10
LIMIT_S = 60


def reason(text):
    """Returns the line of stderr that contains the reason, without the prefix."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("help:")] or ["no reason given"]
    obstacles = [line for line in lines if re.match(r"pids? \d.*: ", line)]
    said = [line for line in lines if re.match(r"(undying|error)\b", line)] or lines
    return obstacles[0] if obstacles else re.sub(r"^(undying|error):\s*", "", said[-1])


class Undying:
    """The binary `undying`, and a store."""

    def __init__(self, binary, folder):
        self.binary, self.folder, self.store = binary, folder, os.path.join(folder, "store")

    def words(self, *words):
        return [self.binary, "--store", self.store, *words]

    def call(self, *words):
        return subprocess.run(self.words(*words), capture_output=True, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, timeout=LIMIT_S)

    def json(self, *words):
        """Calls a verb with `--json`. Returns the parsed output, or None if the verb fails (unknown subject)."""
        done = self.call(*words, "--json")
        try:
            return json.loads(done.stdout) if done.returncode == 0 else None
        except ValueError:
            return None

    def lines(self, *words):
        """Calls a verb that prints one JSON value per line, and returns the values."""
        return [json.loads(line) for line in self.call(*words, "--json").stdout.splitlines()]

    def checkpoint_and_kill(self, pid, image):
        """Makes an image of the process tree of `pid`, and ends the tree. Retries after transient refusals."""
        for attempt in range(ATTEMPTS_MAX):
            done = self.call("checkpoint", str(pid), "--image", image, "--kill")
            if done.returncode == 0:
                return
            if done.returncode != REFUSED:
                raise Wrong("checkpoint --kill ended with %d: %s" % (done.returncode, reason(done.stderr)))
            if not MOMENTARY.search(done.stderr) or attempt + 1 == ATTEMPTS_MAX:
                raise Refused(reason(done.stderr))
            time.sleep(0.2)

    def restore(self, image):
        """Restores the process tree from an image. Returns the pid of its root."""
        pidfile = os.path.join(self.folder, "restored.pid")
        # The output goes to a file. The restored tree could keep a pipe open, and this call would then wait.
        with open(os.path.join(self.folder, "restore.log"), "w+") as log:
            done = subprocess.run(self.words("restore", image, "--detach", "--pidfile", pidfile), stdout=log, stderr=log,
                                  stdin=subprocess.DEVNULL, timeout=LIMIT_S)
            log.seek(0)
            if done.returncode != 0:
                raise Wrong("restore ended with %d: %s" % (done.returncode, reason(log.read())))
        with open(pidfile) as file:
            return int(file.read())

    def status(self, name):
        found = self.json("status", name)
        return found[0] if found else None

    def checkpoints(self, name):
        """Returns the committed checkpoints of a subject, oldest first."""
        return [entry for entry in self.json("ls", name) or [] if entry["committed"]]

    def deaths(self, name):
        return self.json("deaths", name) or []
