"""A system under `undying up`: starting it, asking how it is, killing its components, ending it."""
import json
import os
import signal
import subprocess
import sys
import time

import guarded
from screen import Failure


class GuardedSystem:
    """The components of one system file, with their guardian."""

    def __init__(self, undying, file, names):
        self.undying = undying
        folder = os.path.dirname(file)
        self.store = os.path.join(folder, "store")
        self.log = os.path.join(folder, "log")
        # The programs of the file run with the interpreter that runs this.
        path = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
        with open(self.log, "wb") as log:
            self.guardian = subprocess.Popen(
                [undying, "up", file, "--store", self.store], cwd=folder, env=os.environ | {"PATH": path},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        guarded.alive.append(self)
        self.wait("its components", lambda: all(self.state(name) == "ready" for name in names))

    def call(self, *words):
        return subprocess.run([self.undying, *words, "--store", self.store], timeout=guarded.LIMIT_S,
                              capture_output=True, check=False)

    def status(self):
        """The facts of each component."""
        done = self.call("status", "--json")
        return {one["name"]: one for one in json.loads(done.stdout)} if done.returncode == 0 else {}

    def state(self, name):
        return self.status().get(name, {}).get("component", {}).get("state")

    def kill(self, names):
        """Kills components, all at once; gives the moment."""
        status = self.status()
        moment = time.time()
        for name in names:
            os.kill(status[name]["pid"], signal.SIGKILL)
        return moment

    def wait_ready(self, name, moment):
        """Waits until a component that was killed at this moment is ready; gives the seconds it took."""
        return self.wait(f"the return of {name}", lambda: self.ready_after(name, moment))

    def ready_after(self, name, moment):
        events = map(json.loads, self.call("events", name, "--json").stdout.splitlines())
        times = [guarded.seconds(one["time"]) for one in events if one["event"] == "ready"]
        return times[-1] - moment if times and times[-1] > moment else None

    def wait(self, what, condition):
        deadline = time.monotonic() + guarded.LIMIT_S
        while not (result := condition()):
            if self.guardian.poll() is not None:
                raise Failure(f"the system ended before {what}:\n{self.said()}")
            if time.monotonic() > deadline:
                raise Failure(f"no sign of {what} within {guarded.LIMIT_S} s:\n{self.said()}")
            time.sleep(guarded.POLL_S)
        return result

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def down(self):
        """Ends the system by `undying down`; the exit status of its guardian."""
        done = self.call("down")
        if done.returncode != 0:
            raise Failure(f"the system does not end: {done.stderr.decode()}\n{self.said()}")
        return self.guardian.wait(guarded.LIMIT_S)

    def pids(self):
        return [one["pid"] for one in self.status().values() if one["pid"]]
