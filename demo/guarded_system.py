"""Code to start a system of programs under `undying up`, to query its status, to kill components, and to end it."""
import json
import os
import signal
import subprocess
import sys
import time

import guarded
from screen import Failure


class GuardedSystem:
    """The components of one system file, and the process of `undying up` (their guardian)."""

    def __init__(self, undying, file, names):
        self.undying = undying
        folder = os.path.dirname(file)
        self.store = os.path.join(folder, "store")
        self.log = os.path.join(folder, "log")
        # The components use the Python interpreter that runs this script.
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
        """Returns the status of each component, by name. Empty if the command fails."""
        done = self.call("status", "--json")
        return {one["name"]: one for one in json.loads(done.stdout)} if done.returncode == 0 else {}

    def state(self, name):
        return self.status().get(name, {}).get("component", {}).get("state")

    def kill(self, names):
        """Kills the root processes of components, one directly after the other. Returns the time of the first kill."""
        status = self.status()
        moment = time.time()
        for name in names:
            os.kill(status[name]["pid"], signal.SIGKILL)
        return moment

    def wait_ready(self, name, moment):
        """Waits until a component that was killed at time `moment` is ready again. Returns the seconds between both."""
        return self.wait(f"the restart of {name}", lambda: self.ready_after(name, moment))

    def ready_after(self, name, moment):
        events = map(json.loads, self.call("events", name, "--json").stdout.splitlines())
        times = [guarded.seconds(one["time"]) for one in events if one["event"] == "ready"]
        return times[-1] - moment if times and times[-1] > moment else None

    def wait(self, what, condition):
        deadline = time.monotonic() + guarded.LIMIT_S
        while not (result := condition()):
            if self.guardian.poll() is not None:
                raise Failure(f"the system ended during the wait for {what}:\n{self.said()}")
            if time.monotonic() > deadline:
                raise Failure(f"timeout after {guarded.LIMIT_S} s in the wait for {what}:\n{self.said()}")
            time.sleep(guarded.POLL_S)
        return result

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def down(self):
        """Ends the system with `undying down`. Returns the exit status of the guardian."""
        done = self.call("down")
        if done.returncode != 0:
            raise Failure(f"`undying down` failed: {done.stderr.decode()}\n{self.said()}")
        return self.guardian.wait(guarded.LIMIT_S)

    def pids(self):
        return [one["pid"] for one in self.status().values() if one["pid"]]
