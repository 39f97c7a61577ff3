"""A server as a component under `undying up`, the kills of its processes, and the events that report them."""
import datetime
import json
import os
import signal
import subprocess
import threading
import time

from lib.system import Wrong, descendants, is_alive, wait_for
from lib.trials import last_lines
from lib.undying import Undying

from .servers import WORKERS

NAME = "server"
# Time limits of single waits.
UP_LIMIT_S, RETURN_LIMIT_S, DOWN_LIMIT_S, LEFT_LIMIT_S, LOOK_LIMIT_S = 60, 60, 60, 15, 15
# Longest time from the last return of the server to a kill. It covers several checkpoint intervals of 50 ms.
LATEST_S = 0.25
# Fraction of kills that are followed by a second kill of the new incarnation, before it may be ready. Longest delay of
# the second kill.
AGAIN_SHARE, AGAIN_MAX_S = 0.1, 0.03
FIRST_CHECKPOINTS = 3
SYSTEM = """[system]
name = "campaign"
store = "{store}"

[component.server]
command = {command}
policy = "{policy}"
{keys}ready = {ready}
restart = {{ max = "100000/1m", backoff = "10ms..50ms" }}
log = "server.log"
"""


class Events:
    """Reads `undying events -f --json`. `checkpoints` has the times of the checkpoints, `all` has all other events."""

    def __init__(self, undying, name):
        self.process = subprocess.Popen(undying.words("events", name, "-f", "--json"), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.all, self.checkpoints = [], {}
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            event["at"] = datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()
            if event["event"] == "checkpoint":
                self.checkpoints[event["seq"]] = event["at"]
            else:
                self.all.append(event)

    def of(self, *kinds):
        return [event for event in list(self.all) if event["event"] in kinds]

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


class System:
    """A running system with one server as its component. `down` ends it."""

    def __init__(self, binary, server, policy, every, draw):
        self.server, self.draw = server, draw
        self.is_checkpointed, self.is_committed = policy != "stateless", policy == "committed"
        self.undying, self.log = Undying(binary, server.folder), os.path.join(server.folder, "up.log")
        text = SYSTEM.format(store=self.undying.store, command=json.dumps(server.command()), ready=server.ready(),
                             policy="checkpointed" if self.is_checkpointed else policy, keys=self.keys(every))
        with open(server.path("system.toml"), "w") as file:
            file.write(text)
        with open(self.log, "wb") as log:
            self.guardian = subprocess.Popen(self.undying.words("up", "system.toml"), cwd=server.folder, stdout=log,
                                             stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.events, self.kills, self.deaths = None, {}, 0

    def keys(self, every):
        """Returns the lines of the system file that depend on the policy."""
        keys = ['every = "%s"' % every] * self.is_checkpointed + ['output = "committed"'] * self.is_committed
        return "".join(key + "\n" for key in keys)

    def await_up(self):
        wait_for(lambda: self.state() == "ready" or self.has_ended(), "the server to be ready: " + self.said(), UP_LIMIT_S)
        self.events = Events(self.undying, NAME)
        wait_for(lambda: self.events.of("ready") or self.has_ended(), "the event of its start", UP_LIMIT_S)
        if self.is_checkpointed:
            wait_for(lambda: len(self.events.checkpoints) >= FIRST_CHECKPOINTS or self.has_ended(), "checkpoints", UP_LIMIT_S)
        if self.has_ended():
            raise Wrong("undying up ended with %d: %s" % (self.guardian.returncode, self.said()))

    def status(self):
        return (self.undying.json("status", NAME) or [{}])[0]

    def state(self):
        return self.status().get("component", {}).get("state")

    def channels(self):
        """Returns the channel levels that `status` reports, by kind of socket. `status` is updated once per second."""
        found = lambda: sorted({"%s %s" % (one["level"], one["kind"] or "callers") for one in self.status().get("channels", ())})
        wait_for(lambda: any(level.startswith("L0") for level in found()), "a channel of level L0 in status", LOOK_LIMIT_S)
        told = self.status().get("connections", {})
        levels = {"L2 tcp": told.get("kept", 0), "L3 tcp": told.get("rewound", 0)}
        return found() + [level for level, count in levels.items() if count]

    def has_ended(self):
        return self.guardian.poll() is not None

    def said(self):
        return last_lines(self.log)

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.guardian.pid))

    # Kills ----------------------------------------------------------------------------------------------------------

    def root(self):
        """Returns the pid of the present incarnation, from the last event of a start."""
        return self.events.of("started", "restored")[-1]["pid"]

    def kill(self):
        """Kills processes of the server at a random moment, and waits until the server is ready again.

        Sometimes also kills the new incarnation. After the kill of a worker, does not wait: the server continues.
        Returns whether a process was killed.
        """
        time.sleep(self.draw.uniform(0, LATEST_S))
        self.await_settled()
        kind = self.draw.choice(("master", "worker", "tree")) if self.server.has_workers else "root"
        root = self.root()
        workers = children(root)
        if not self.shoot({"worker": workers[:1], "tree": [root, *workers]}.get(kind, [root]), kind):
            return False
        if kind == "worker":
            return True
        self.deaths += 1
        if self.draw.random() < AGAIN_SHARE:
            self.await_incarnation()
            time.sleep(self.draw.uniform(0, AGAIN_MAX_S))
            self.deaths += self.shoot([self.root()], "again")
        self.await_return()
        return True

    def shoot(self, pids, kind):
        """Sends SIGKILL to descendants of the guardian. A pidfd cannot refer to another process with the same pid."""
        handles, done = [], 0
        try:
            handles = [os.pidfd_open(pid) for pid in self.draw.sample(pids, len(pids)) if is_alive(pid)]
            below = descendants(self.guardian.pid)
            if not handles or not set(pids) <= set(below):
                return False
            for handle in handles:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                done += 1
        except ProcessLookupError:
            pass
        finally:
            for handle in handles:
                os.close(handle)
        self.kills[kind] = self.kills.get(kind, 0) + bool(done)
        return done > 0

    def await_settled(self):
        """Waits until all workers run, if the server has workers."""
        if self.server.has_workers:
            wait_for(lambda: self.has_ended() or len(children(self.root())) == WORKERS, "the workers", RETURN_LIMIT_S, 0.005)

    def await_incarnation(self):
        """Waits for a start after the last death."""
        self.await_events("a start after death %d" % self.deaths, ("started", "restored"))

    def await_return(self):
        self.await_events("the return after death %d" % self.deaths, ("ready",))

    def await_events(self, what, kinds):
        def is_there():
            died, then = self.events.of("died"), self.events.of(*kinds)
            return self.has_ended() or len(died) >= self.deaths and then[-1]["at"] >= died[-1]["at"]
        try:
            wait_for(is_there, what, RETURN_LIMIT_S, 0.005)
        except Wrong as problem:
            raise Wrong("%s: %s; %s" % (problem, self.events.all[-4:], self.said())) from None
        if self.has_ended():
            raise Wrong("undying up ended with %s: %s" % (self.guardian.returncode, self.said()))

    def checkpoint_after(self, death):
        """Returns the time of the checkpoint that was restored after a death. None if no checkpoint was restored."""
        after = self.events.all[self.events.all.index(death) + 1:]
        followed = next((one for one in after if one["event"] in ("started", "restored")), {})
        return self.events.checkpoints.get(followed.get("seq"))

    def returns(self):
        """Returns a row for each death: how the server was started again, and how many ms later it was ready.

        The time is empty if the server died again before it was ready.
        """
        rows, began = [], self.events.all[0]["at"]
        for place, event in enumerate(self.events.all):
            if event["event"] != "died":
                continue
            after = self.events.all[place + 1:]
            end = next((number for number, one in enumerate(after) if one["event"] == "died"), len(after))
            followed = next((one for one in after[:end] if one["event"] in ("started", "restored")), None)
            ready = next((one for one in after[:end] if one["event"] == "ready"), None)
            rows.append({"death": len(rows) + 1, "second": round(event["at"] - began, 3),
                         "followed_by": followed["event"] if followed else "", "seq": (followed or {}).get("seq", ""),
                         "restore_ms": round(followed["took_us"] / 1000, 1) if followed and "took_us" in followed else "",
                         "back_ms": round((ready["at"] - event["at"]) * 1000, 1) if ready else ""})
        return rows

    # The end --------------------------------------------------------------------------------------------------------

    def down(self):
        """Ends the system by `undying down`. Raises Wrong if a process does not end."""
        below = descendants(self.guardian.pid)
        self.undying.call("down")
        try:
            code = self.guardian.wait(DOWN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Wrong("undying down does not end the system: " + self.said()) from None
        if code != 0:
            raise Wrong("undying up ended with %d: %s" % (code, self.said()))
        # The process that holds the listening sockets detects the end of the guardian, and ends a moment later.
        left = lambda: [name_of(pid) for pid in below if is_alive(pid)]
        try:
            wait_for(lambda: not left(), "the end of all processes", LEFT_LIMIT_S)
        except Wrong:
            raise Wrong("processes that still run after undying down: %s" % summary(left())) from None

    def end(self):
        """Ends all processes of the system, in any state. Does nothing if the guardian has ended."""
        if self.events:
            self.events.end()
        if not self.has_ended():
            below = descendants(self.guardian.pid)
            self.guardian.kill()
            self.guardian.wait()
            for pid in filter(is_alive, below):
                os.kill(pid, signal.SIGKILL)


def children(pid):
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
            return [int(word) for word in file.read().split() if is_alive(int(word))]
    except OSError:
        return []


def name_of(pid):
    try:
        with open("/proc/%d/comm" % pid) as file:
            return file.read().strip()
    except OSError:
        return "pid %d" % pid


def summary(names):
    return ", ".join("%d × %s" % (names.count(name), name) for name in sorted(set(names)))
