"""The trial of a job: uninterrupted runs, and then runs with kills. All runs must leave equal files."""
import os
import random
import shutil
import subprocess
import sys
import time

from lib.system import TimeUp, Wrong, end_everything
from lib.trials import last_lines, spawn

from .disks import Disk
from .guarded import Guarded
from .trees import Tree

# Maximum number of kills in a run. Number of failed runs after which the trial ends.
KILLS_MAX, BROKEN_MAX = 7, 3
LIMIT_S = 120
# Time limit of a run with kills: a multiple of the uninterrupted run, plus a time for each kill, plus a fixed time.
FACTOR_MAX, PER_KILL_S, FLOOR_S = 4, 6, 30
SHOWN = 3
NO_COUNTS = {"kills": 0, "root": 0, "child": 0, "guardian": 0, "runs": 0, "restored": 0, "fresh": 0, "differences": 0,
             "odd_times": 0}


def limit_s(setup):
    """Returns the time limit of all runs of one program, in seconds. Each run also has its own limit."""
    return 2 * LIMIT_S + 60 * (setup.kills + 2)


def try_job(kind, disk, setup, folder, row):
    """Runs all runs of one job on one type of file system, and fills in the row."""
    row.update(NO_COUNTS, why_fresh=[])
    with Disk(disk, folder) as place:
        trial = Trial(kind, setup, place, folder, row)
        trial.make_reference()
        trial.run_all()
    if trial.failures:
        raise Wrong("; ".join(trial.failures[:SHOWN]))


class Trial:
    """The runs of one job.

    Each run starts in the directory `work`, with a copy of `inputs`. `reference` has the files that are expected.
    """

    def __init__(self, kind, setup, place, folder, row):
        self.setup, self.row, self.failures = setup, row, []
        self.inputs, self.work, self.reference = (os.path.join(place, name) for name in ("inputs", "work", "reference"))
        self.stores, self.log = os.path.join(folder, "stores"), os.path.join(folder, "reference.log")
        self.draw = random.Random("%s %s" % (setup.seed, kind.name))
        self.program = kind(self.work, self.draw, kind.quick_part if setup.quick else 1.0)
        row["version"] = self.program.version()
        os.mkdir(self.work)
        os.chmod(self.work, 0o755)
        self.program.prepare()
        os.rename(self.work, self.inputs)

    def begin(self):
        """Prepares the directory `work` for a run. Returns the time, in ns since 1970."""
        shutil.rmtree(self.work, ignore_errors=True)
        subprocess.run(["cp", "-a", self.inputs, self.work], check=True, stdin=subprocess.DEVNULL)
        return time.time_ns()

    def output(self):
        """Opens the file for the standard output of the job, alternately like `>` and `>>` of a shell.

        Returns None if the job does not need such a file. The output is then written to the log.
        """
        mode = "ab" if self.row["runs"] % 2 else "wb"
        return open(self.program.path(self.program.output), mode) if self.program.output else None

    def tree(self, root):
        return Tree(root, self.program.ignored, self.program.loose)

    def make_reference(self):
        """Runs the job without `undying` for the reference. A second run checks that two runs leave the same files."""
        for number in range(1 if self.setup.quick else 2):
            begun, output, start = self.begin(), self.output(), time.monotonic()
            process = spawn(self.program.command(), self.work, self.program.environment(), self.log, output)
            if output:
                output.close()
            try:
                status = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                raise Wrong("without kills, the job does not end within %d s" % LIMIT_S) from None
            if status != 0:
                raise Wrong("without kills, the job exits with %d: %s" % (status, last_lines(self.log)))
            if number == 0:
                self.seconds, self.begun = time.monotonic() - start, begun
                self.facts = self.program.facts()
                os.rename(self.work, self.reference)
                self.due = self.tree(self.reference)
            elif found := self.compare(begun):
                raise Wrong("two uninterrupted runs differ: " + " / ".join(found[:SHOWN]))
        self.row["uninterrupted_s"] = round(self.seconds, 1)

    def compare(self, begun):
        """Returns the differences between the directory `work` and the reference, as lines of text."""
        tree = self.tree(self.work)
        found = tree.differences(self.due)
        self.row["odd_times"] += len(tree.odd_times(self.due, begun, self.begun))
        try:
            if self.program.facts() != self.facts:
                found.append("the output of the program's own tools differs")
        except Wrong as failure:
            found.append(str(failure))
        except (OSError, ValueError) as failure:
            found.append("the program's own tools fail: %r" % failure)
        return found

    def run_all(self):
        """Repeats runs until all kills are made. Each kill happens while the job runs."""
        self.row["odd_times"] = 0
        runs_max = 2 * self.setup.kills + 3
        while self.row["runs"] == 0 or self.row["kills"] < self.setup.kills:
            self.row["runs"] += 1
            if self.row["runs"] > runs_max:
                self.failures.append("only %d kills in %d runs" % (self.row["kills"], runs_max))
            elif failure := self.run_one():
                self.failures.append("run %d: %s" % (self.row["runs"], failure))
                print("  %s, %s" % (self.program.name, self.failures[-1]), file=sys.stderr, flush=True)
            if len(self.failures) >= BROKEN_MAX:
                return
        if self.row["root"] + self.row["child"] > 0 and self.row["restored"] == 0:
            self.failures.append("no death was followed by a restore")

    def run_one(self):
        """Makes one run. Returns the failure as text, or None."""
        begun, output, number = self.begin(), self.output(), self.row["runs"]
        run = Guarded(self.program, self.setup, os.path.join(self.stores, str(number)), self.row, self.draw)
        run.start(output)
        if output:
            output.close()
        kinds, failure = self.kinds(number), None
        try:
            self.kill(run, kinds)
            run.await_end(FACTOR_MAX * self.seconds + PER_KILL_S * len(kinds) + FLOOR_S)
            run.count_restarts()
        except TimeUp:
            raise
        except Wrong as wrong:
            failure = str(wrong)
            run.count_restarts()
            end_everything()
        found = self.compare(begun)
        self.row["differences"] += len(found)
        if found:
            failure = "; ".join([*([failure] if failure else []), "%d differences: %s" % (
                len(found), " / ".join(found[:SHOWN]))])
        if not (failure and self.setup.keep):
            shutil.rmtree(run.undying.folder, ignore_errors=True)
        return failure

    def kinds(self, number):
        """Returns the targets of the kills of a run, in order.

        In every other run, the guardian is the last target, because the guardian is not restarted.
        """
        count = min(self.setup.kills - self.row["kills"], self.draw.randint(2, KILLS_MAX))
        if self.setup.quick:
            count = min(count, 3)
        others = ["root", "child"] if self.program.restart_on_child else ["root"]
        kinds = [self.draw.choice(others) for _ in range(count)]
        if kinds and number % 2 == 1:
            kinds[-1] = "guardian"
        return kinds

    def kill(self, run, kinds):
        if kinds and not self.setup.from_start and not run.await_checkpoint():
            return
        for number, kind in enumerate(kinds):
            latest = 0.4 if number == 0 else 1.2 / len(kinds)
            if not run.sleep(self.draw.uniform(0, latest * self.seconds)) or not run.kill(kind):
                return
