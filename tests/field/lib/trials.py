"""The two trials of a program: `one-shot`, with single checkpoints, and `run`, with kills.

one-shot: the program is put under load, ended by `undying checkpoint --kill`, restored and checked, twice. No data may
be lost.

run: the program runs under `undying run` with short intervals. Under load, its root process is killed with SIGKILL at
random moments. An item that was acknowledged before the restored checkpoint began must exist. A durable service may
lose no acknowledged item. A start from the beginning (`fresh`) is allowed: a durable service then recovers from its
files, and a job repeats its work.
"""
import os
import re
import signal
import subprocess
import threading
import time

from .program import Job
from .system import Refused, Wrong, descendants, is_alive, reap, wait_for
from .undying import reason

# Time limits of single waits. A loaded machine with two processors needs a tenth of these times.
GONE_LIMIT_S, CHECKPOINT_LIMIT_S, RESTART_LIMIT_S = 20, 20, 40
# After this time without a checkpoint, a subject with refusals counts as refused. Pause between two calls of `undying`.
REFUSALS_S, ASK_S = 5, 0.1
# Longest time from a checkpoint to the kill, in seconds.
KILL_SPREAD_S = 0.5
# Ranges of the completed work, as a fraction, at the first and at the second checkpoint of a job.
FIRST_PART, SECOND_PART = (0.1, 0.3), (0.45, 0.7)


class Outcome:
    """The numbers of restores and of starts from the beginning, and the reason of the last such start."""

    def __init__(self):
        self.restored, self.fresh, self.fresh_reason = 0, 0, ""


def spawn(words, folder, environment, log, output=None):
    """Starts a process in a new session. Its input is /dev/null, and its output goes to files (not to pipes)."""
    with open(log, "ab") as out:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output or out, stderr=out, cwd=folder,
                                env={**os.environ, **environment}, start_new_session=True)


def last_lines(path, count=3):
    with open(path, "rb") as file:
        lines = file.read().decode(errors="replace").splitlines()
    return " / ".join(line.strip() for line in lines[-count:]) or "no output"


class Burst:
    """A context manager: opens the connection of a client, and closes it at the end."""

    def __init__(self, program):
        self.program = program

    def __enter__(self):
        self.program.open()
        return self.program

    def __exit__(self, *_):
        self.program.close()


# One-shot -----------------------------------------------------------------------------------------------------------

class OneShot:
    """The trial `one-shot`: a program without a guardian."""

    def __init__(self, program, undying):
        self.program, self.undying, self.outcome = program, undying, Outcome()
        self.log = program.path("one-shot.log")

    def start(self):
        program = self.program
        process = spawn(program.command(), program.folder, program.environment(), self.log)
        self.pid, self.status = process.pid, None
        # From now on, `reap` reaps the process. With a return code, the Popen object does not wait for it.
        process.returncode = 0

    def has_ended(self):
        """Returns whether the root has ended. Also reaps orphans of the tree, because a zombie keeps its pid in use."""
        self.status = reap().get(self.pid, self.status)
        return not is_alive(self.pid)

    def are_gone(self, tree):
        reap()
        return not any(os.path.exists("/proc/%d" % pid) for pid in tree)

    def alive(self, what):
        if self.has_ended():
            raise Wrong("the program ended %s: %s" % (what, last_lines(self.log)))

    def die_and_return(self, number):
        """Makes a checkpoint that ends the tree, and restores it."""
        image, tree = os.path.join(self.undying.folder, "image-%d" % number), [self.pid, *descendants(self.pid)]
        self.alive("before checkpoint %d" % number)
        self.undying.checkpoint_and_kill(self.pid, image)
        wait_for(lambda: self.are_gone(tree), "the end of the tree after checkpoint --kill", GONE_LIMIT_S)
        self.pid = self.undying.restore(image)
        self.status = None

    def of_service(self):
        program = self.program
        self.start()
        wait_for(lambda: self.alive("at its start") or program.is_ready(), "the start", program.start_limit_s)
        with Burst(program):
            self.burst()
        for number in (1, 2):
            self.die_and_return(number)
            wait_for(lambda: self.alive("after the restore") or program.is_ready(), "a reply after the restore",
                     RESTART_LIMIT_S)
            with Burst(program):
                program.verify()
                self.burst()
                program.verify()
        os.kill(self.pid, program.stop_signal)
        wait_for(self.has_ended, "the end by signal %d" % program.stop_signal, program.stop_limit_s)
        program.check_files()

    def burst(self):
        for _ in range(self.program.burst):
            self.program.put_next()

    def of_job(self):
        program = self.program
        self.start()
        for number, part in ((1, FIRST_PART), (2, SECOND_PART)):
            until = program.random.uniform(*part)
            wait_for(lambda: self.has_ended() or program.progress() >= until, "progress %.2f" % until, program.limit_s)
            self.die_and_return(number)
        wait_for(self.has_ended, "the end of the job", program.limit_s)
        if self.status is not None and self.status != 0:
            raise Wrong("the job ended with wait status %#x: %s" % (self.status, last_lines(self.log)))
        program.check_output()


# run ----------------------------------------------------------------------------------------------------------------

class Client(threading.Thread):
    """A client that writes one item after another. It opens a new connection when its connection breaks."""

    def __init__(self, program):
        super().__init__(daemon=True)
        self.program, self.over, self.failure = program, threading.Event(), None

    def run(self):
        program = self.program
        while not self.over.is_set():
            try:
                program.open()
                while not self.over.is_set():
                    program.put_next()
                    time.sleep(program.pace_s)
            except (OSError, EOFError, subprocess.SubprocessError):
                time.sleep(0.05)
            except Exception as failure:
                self.failure = failure
                return
            finally:
                program.close()

    def stop(self):
        self.over.set()
        self.join(30)
        if self.is_alive():
            raise Wrong("a client waits forever for a reply")
        if self.failure:
            raise self.failure


class Run:
    """The trial `run`: a program under `undying run`, with kills."""

    def __init__(self, program, undying, kills):
        self.program, self.undying, self.kills, self.outcome = program, undying, kills, Outcome()
        self.log = program.path("run.log")

    def start(self):
        program = self.program
        # The default limit of 5 restarts per minute can be too low for this trial.
        words = self.undying.words("run", "--name", "field", "--every", program.every, *program.files, "--max-restarts",
                                   "%d/1m" % (2 * self.kills + 10), "--", *program.command())
        self.guardian = spawn(words, program.folder, program.environment(), self.log)

    def alive(self):
        if self.guardian.poll() is not None:
            raise Wrong("undying run ended with %d: %s" % (self.guardian.returncode, last_lines(self.log)))

    def last_seq(self):
        found = self.undying.checkpoints("field")
        return found[-1]["seq"] if found else -1

    def await_checkpoint(self):
        """Waits for a committed checkpoint that began after this call. It is the second new checkpoint.

        Returns False if the guardian has ended. Raises Refused if `undying` makes no checkpoint.
        """
        before, begin = self.last_seq(), time.monotonic()
        while (last := self.last_seq()) < before + 2:
            waited = time.monotonic() - begin
            if self.guardian.poll() is not None:
                return False
            if waited > CHECKPOINT_LIMIT_S or last < 0 and waited > REFUSALS_S and self.refusals():
                raise Refused(self.why_unprotected(before))
            time.sleep(ASK_S)
        return True

    def refusals(self):
        status = self.undying.status("field") or {}
        return [refusal["reason"] for refusal in status.get("refusals") or []]

    def why_unprotected(self, before):
        with open(self.log, errors="replace") as file:
            why = reason((self.refusals() or [file.read()])[-1])
        return "no checkpoint after number %d: %s" % (before, why) if before >= 0 else why

    def kill(self):
        """Kills the root process. Returns False if the program has ended before."""
        status = self.undying.status("field")
        if status is None or self.guardian.poll() is not None:
            return False
        self.restarts = status["restarts"]
        try:
            os.kill(status["pid"], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def await_restart(self, number):
        """Waits until the guardian has reacted to the death, and counts the reaction in `outcome`."""
        deaths = wait_for(lambda: self.followed(number), "the reaction to kill %d" % number, RESTART_LIMIT_S, ASK_S)
        followed = deaths[-1]["followed_by"]
        if followed == "restored":
            self.outcome.restored += 1
        elif followed in ("gave-up", "ended"):
            raise Wrong("undying gave up: %s" % last_lines(self.log))
        else:
            self.outcome.fresh += 1
            why = (deaths[-1].get("why") or "").strip().splitlines()
            self.outcome.fresh_reason = why[-1].strip() if why else self.why_fresh()

    def followed(self, number):
        deaths = self.undying.deaths("field")
        if len(deaths) >= number and deaths[-1]["followed_by"] != "nothing":
            return deaths
        self.alive()
        return None

    def why_fresh(self):
        with open(self.log, errors="replace") as file:
            lines = [line.strip() for line in file]
        for sign in (r"was changed|has changed|it is unknown", r"from the beginning|fresh"):
            if found := [line for line in lines if re.search(sign, line)]:
                return reason(found[-1])
        return ""

    def of_service(self):
        program = self.program
        self.start()
        self.await_ready("the start", program.start_limit_s)
        client = Client(program)
        client.start()
        try:
            for number in range(1, self.kills + 1):
                mark = max(program.acknowledged, default=0)
                self.await_checkpoint()
                time.sleep(program.random.uniform(0, KILL_SPREAD_S))
                if not self.kill():
                    raise Wrong("the program ended by itself: %s" % last_lines(self.log))
                self.await_restart(number)
                self.await_ready("a reply after kill %d" % number, RESTART_LIMIT_S)
                if not program.durable:
                    program.may_lack.append((mark if deaths_restored(self) else 0, program.sent))
            time.sleep(0.3)
        finally:
            client.over.set()
        client.stop()
        with Burst(program):
            program.verify()
        status = self.undying.status("field")
        if status is None:
            raise Wrong("no status of a running subject")
        os.kill(status["pid"], program.stop_signal)
        wait_for(lambda: self.guardian.poll() is not None, "the end of undying run", program.stop_limit_s)
        program.check_files()

    def await_ready(self, what, limit_s):
        wait_for(lambda: self.alive() or self.program.is_ready(), what, limit_s)

    def of_job(self):
        program = self.program
        self.start()
        for number in range(1, self.kills + 1):
            # Wait until the job has opened its output file. An earlier checkpoint does not record this file, so a
            # restore would not detect that the file has changed.
            wait_for(lambda: self.guardian.poll() is not None or program.progress() > 0, "the job's first step",
                     program.start_limit_s)
            if not self.await_checkpoint():
                break
            time.sleep(program.random.uniform(0, KILL_SPREAD_S))
            if not self.kill():
                break
            self.await_restart(number)
        wait_for(lambda: self.guardian.poll() is not None, "the end of the job", program.limit_s)
        if self.guardian.returncode != 0:
            raise Wrong("undying run ended with %d: %s" % (self.guardian.returncode, last_lines(self.log)))
        if self.outcome.restored + self.outcome.fresh == 0:
            if self.last_seq() < 0:
                raise Refused(self.why_unprotected(-1))
            raise Wrong("the job ended before the first kill")
        program.check_output()


def deaths_restored(trial):
    """Returns whether the program was restored after its last death."""
    return trial.undying.deaths("field")[-1]["followed_by"] == "restored"


def one_shot(program, undying):
    trial = OneShot(program, undying)
    trial.of_job() if isinstance(program, Job) else trial.of_service()
    return trial.outcome


def run(program, undying, kills):
    trial = Run(program, undying, kills)
    trial.of_job() if isinstance(program, Job) else trial.of_service()
    return trial.outcome
