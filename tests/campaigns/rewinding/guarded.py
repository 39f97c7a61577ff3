"""A program under `undying run`, and the kills of its root process, of a child, or of the guardian."""
import os
import signal
import time

from lib.system import Wrong, descendants, is_alive, reap, wait_for
from lib.trials import last_lines, spawn
from lib.undying import Undying

NAME = "rewind"
# Time limits of single waits, and the pause between two calls of `undying`.
FIRST_CHECKPOINT_LIMIT_S, RESTART_LIMIT_S, LEFT_LIMIT_S, ASK_S = 20, 40, 15, 0.03
# Interval in which the deaths are searched for a failure of the program itself.
DEATHS_EACH_S = 1
# Time limit of the restart after the kill of a child. If the child had just ended by itself, there is no restart.
CHILD_LIMIT_S = 5
# Fraction of the kills of the root that are followed by a second kill during the restore. Longest delay of the second.
AGAIN_SHARE, AGAIN_MAX_S = 0.15, 0.15


class Setup:
    """The settings that are the same for all programs."""

    def __init__(self, chosen, seed):
        self.undying, self.mode, self.every, self.kills = chosen.undying, chosen.mode, chosen.every, chosen.kills
        self.options, self.keep, self.quick, self.seed = chosen.option, chosen.keep, chosen.quick, seed
        self.from_start = chosen.from_start


class Guarded:
    """One call of `undying run` with its own store. `row` counts the kills, restores and starts from the beginning."""

    def __init__(self, program, setup, folder, row, draw):
        self.program, self.setup, self.row, self.draw = program, setup, row, draw
        os.makedirs(folder, mode=0o700)
        self.undying, self.log = Undying(setup.undying, folder), os.path.join(folder, "log")
        self.root, self.is_protected = None, True

    def start(self, output=None):
        words = ["run", "--name", NAME, "--every", self.setup.every, "--files", self.setup.mode, "--max-restarts", "1000/1m",
                 *self.setup.options]
        if getattr(self.program, "restart_on_child", False):
            words += ["--restart-on", "child-signal"]
        words = self.undying.words(*words, "--", *self.program.command())
        self.guardian = spawn(words, self.program.folder, self.program.environment(), self.log, output)

    def has_ended(self):
        """Returns whether the program has ended. The guardian exits at this end, unless the guardian was killed."""
        if self.is_protected:
            return self.guardian.poll() is not None
        self.status = reap().get(self.root, self.status)
        return not is_alive(self.root)

    def sleep(self, seconds):
        """Sleeps. Returns False, at once, if the program ends."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.has_ended():
                return False
            time.sleep(min(left, ASK_S))
        return not self.has_ended()

    def await_checkpoint(self):
        """Waits for the first committed checkpoint. Returns False if the program ends before."""
        begin = time.monotonic()
        while not self.undying.checkpoints(NAME):
            if self.has_ended():
                return False
            if time.monotonic() - begin > FIRST_CHECKPOINT_LIMIT_S:
                status = self.undying.status(NAME) or {}
                raise Wrong("no checkpoint: %s %s" % (status.get("refusals"), self.said()))
            time.sleep(ASK_S)
        return True

    def await_checkpoints_from_now(self):
        """Waits for a checkpoint that began after this call. It is the second new checkpoint."""
        last = lambda: max((one["seq"] for one in self.undying.checkpoints(NAME)), default=-1)
        before = last()
        wait_for(lambda: last() >= before + 2, "a checkpoint", FIRST_CHECKPOINT_LIMIT_S, ASK_S)

    def said(self):
        return last_lines(self.log)

    # Kills ----------------------------------------------------------------------------------------------------------

    def kill(self, kind):
        """Kills one process, and waits for the restart. Returns False if the program has ended."""
        status = self.undying.status(NAME)
        if status is None or self.has_ended():
            return False
        self.root = status["pid"]
        before = len(self.undying.deaths(NAME))
        if kind == "guardian":
            return self.kill_guardian()
        if kind == "child":
            return self.kill_child(before)
        if not self.shoot(self.root, "root"):
            return False
        if self.draw.random() < AGAIN_SHARE:
            time.sleep(self.draw.uniform(0, AGAIN_MAX_S))
            self.shoot(self.root, "root")
        self.await_followed(before + 1, RESTART_LIMIT_S)
        return not self.has_ended()

    def kill_child(self, before):
        """Kills a random descendant of the root, or the root if it has no descendant at this moment."""
        children = [pid for pid in descendants(self.root) if is_alive(pid)]
        target = self.draw.choice(children) if children else self.root
        if not self.shoot(target, "child" if children else "root"):
            return not self.has_ended()
        if self.program.restart_on_child or not children:
            self.await_followed(before + 1, CHILD_LIMIT_S if children else RESTART_LIMIT_S, must=not children)
        return not self.has_ended()

    def kill_guardian(self):
        """Kills the guardian. From then on, the program runs without a guardian.

        Returns True even if the program has ended at this moment: its files are compared in any case.
        """
        wait_for(lambda: self.has_ended() or self.is_settled(), "the end of a restore", RESTART_LIMIT_S, ASK_S)
        if self.has_ended():
            return False
        self.status = None
        self.guardian.kill()
        self.guardian.wait()
        self.is_protected = False
        self.count("guardian")
        return True

    def is_settled(self):
        """Returns whether the program runs, and the guardian has reacted to every death."""
        status = self.undying.status(NAME)
        return (status is not None and status["state"] == "running" and is_alive(status["pid"])
                and all(death["followed_by"] != "nothing" for death in self.undying.deaths(NAME)))

    def shoot(self, pid, kind):
        """Sends SIGKILL to a descendant of this process. A pidfd cannot refer to another process with the same pid."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            if not is_alive(pid) or pid not in descendants(os.getpid()):
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        self.count(kind)
        return True

    def count(self, kind):
        self.row["kills"] += 1
        self.row[kind] += 1

    def await_followed(self, number, limit_s, must=True):
        """Waits until the guardian has reacted to the death with this number, or the program has ended."""
        begin = time.monotonic()
        while not self.has_ended():
            deaths = self.undying.deaths(NAME)
            if len(deaths) >= number and deaths[-1]["followed_by"] != "nothing":
                return
            if time.monotonic() - begin > limit_s:
                if must:
                    raise Wrong("no reaction to death %d: %s" % (number, self.said()))
                return
            time.sleep(ASK_S)

    # The end --------------------------------------------------------------------------------------------------------

    def await_end(self, limit_s, must_succeed=True):
        """Waits for the end of the program, and of all processes of this run."""
        end, ask = time.monotonic() + limit_s, time.monotonic()
        while not self.has_ended():
            if time.monotonic() > end:
                raise Wrong("the end of the program: not within %.0f s: %s" % (limit_s, self.said()))
            if must_succeed and self.is_protected and time.monotonic() > ask:
                self.see_no_failure()
                ask += DEATHS_EACH_S
            time.sleep(ASK_S)
        if must_succeed and self.is_protected and self.guardian.returncode != 0:
            raise Wrong("undying run ended with %d: %s" % (self.guardian.returncode, self.said()))
        if must_succeed and not self.is_protected and self.status:
            raise Wrong("after the guardian's death the program ended with wait status %#x: %s" % (
                self.status, self.said()))
        self.await_nothing_left()

    def see_no_failure(self):
        """Raises Wrong if the program itself has failed.

        An exit code other than 0 is such a failure, unless a child was killed. Without this check, the program could
        fail and be restored forever.
        """
        for death in self.undying.deaths(NAME):
            if death["exit"] and not death.get("child"):
                raise Wrong("the program itself ended with %d: %s" % (death["exit"], self.said()))

    def await_nothing_left(self):
        left = []

        def is_alone():
            reap()
            left[:] = [name_of(pid) for pid in descendants(os.getpid())]
            return not left
        try:
            wait_for(is_alone, "the end of all processes", LEFT_LIMIT_S)
        except Wrong:
            raise Wrong("processes still run: %s" % ", ".join(left)) from None

    def count_restarts(self):
        for death in self.undying.deaths(NAME):
            if death["followed_by"] == "restored":
                self.row["restored"] += 1
            elif death["followed_by"] not in ("nothing", "gave-up", "ended"):
                self.row["fresh"] += 1
                self.row["why_fresh"] = (death.get("why") or "").strip().splitlines()[-1:]


def name_of(pid):
    try:
        with open("/proc/%d/comm" % pid) as file:
            return "%s (%d)" % (file.read().strip(), pid)
    except OSError:
        return str(pid)
