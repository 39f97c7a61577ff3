#!/usr/bin/env python3
"""Is every checkpoint of a subject complete while the subject continuously changes its state?

`undying run --every 10ms` starts the subject, churn.c, which continuously checks its own state. While the subject runs,
every 50th checkpoint is copied. The copies are made in turn by `undying store`, by `store` and `link`, and twice by
`get`.

Each copy is restored in its own pid namespace. SIGUSR1 makes the restored subject run a little longer, check all its
state, and exit with 42 if it found no error.

Writes images-TAG.csv (a row for each image) and images-TAG.txt (the findings). Exits with 1 if an image failed, or if
the original subject found an error.
"""
import csv
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time

from campaign import GOOD, Findings, arguments, compile_churn, say_to
from lib.harness import quantile, wait_for

KEEP = 64
PATIENCE_S = 60
WAYS = ["store", "link", "get", "get"]
COLUMNS = ["seq", "taken_at", "full", "way", "copy_ms", "seconds", "code", "outcome", "said"]


class Lab:
    """The process `undying run`, its store, and the directories of the campaign."""

    def __init__(self, options, scratch):
        self.options, self.scratch, self.store = options, scratch, os.path.join(scratch, "store")
        self.command = [options.undying, "--store", self.store]
        self.work = os.path.join(scratch, "work")
        os.mkdir(self.work)
        self.binary = compile_churn(scratch)
        self.log = open(os.path.join(scratch, "run.log"), "w")
        self.process = subprocess.Popen(
            [*self.command, "run", "--name", "churn", "--every", options.every, "--keep", str(KEEP), "--restart", "never",
             "--", self.binary, self.work, *(["wild"] if options.wild else [])],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        wait_for(lambda: self.process.poll() is not None or self.status(), "the subject")
        self.pid = self.status()["pid"]

    def say(self, *words):
        return say_to(self.command, *words)

    def status(self):
        said = self.say("status", "churn", "--json")
        return json.loads(said.stdout)[0] if said.returncode == 0 else None

    def wrongs(self):
        """Returns the errors that processes of the subject have found, and removes the files that contain them."""
        found = []
        for name in sorted(os.listdir(self.work)):
            if name.startswith("wrong."):
                path = os.path.join(self.work, name)
                with open(path) as file:
                    found.append(name + ": " + file.read().strip())
                os.remove(path)
        return found


class Image:
    """A copy of one checkpoint. The copy is made while the subject runs."""

    def __init__(self, lab, event, way):
        self.lab, self.seq, self.way = lab, event["seq"], way
        self.row = {"seq": self.seq, "taken_at": event["time"], "full": int(event["full"]), "way": way}
        self.name, begun = "c%d" % self.seq, time.monotonic()
        one = "churn@%d" % self.seq
        if way == "get":
            self.name = os.path.join(lab.scratch, self.name)
            done = [lab.say("get", one, self.name)]
        else:
            done = [lab.say("store", one, self.name)]
            if way == "link" and done[0].returncode == 0:
                done += [lab.say("link", self.name, self.name + "l"), lab.say("del", self.name)]
                self.name += "l"
        self.row["copy_ms"] = round(1000 * (time.monotonic() - begun), 1)
        failed = [one for one in done if one.returncode != 0]
        self.is_there = not failed
        if failed:
            self.row.update(outcome="not copied", code=failed[0].returncode, said=flat(failed[0].stderr))

    def judge(self):
        begun, pidfile = time.monotonic(), os.path.join(self.lab.scratch, "pid-%d" % self.seq)
        with open(pidfile + ".said", "w+") as said:
            tree = subprocess.Popen(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *self.lab.command,
                                     "restore", self.name, "--files", "keep", "--pidfile", pidfile], stdin=subprocess.DEVNULL, stdout=said,
                                    stderr=said, start_new_session=True)
            try:
                end = time.monotonic() + PATIENCE_S
                while tree.poll() is None and not os.path.exists(pidfile) and time.monotonic() < end:
                    time.sleep(0.005)
                root = next((pid for pid in descendants(tree.pid) if inner(pid) == self.lab.pid), None)
                if root:
                    os.kill(root, signal.SIGUSR1)
                code = tree.wait(max(1, end - time.monotonic()))
            except (subprocess.TimeoutExpired, ProcessLookupError):
                stacks = ["%d %s" % (pid, where(pid)) for pid in descendants(tree.pid)]
                tree.kill()
                code = "has not exited: " + ", ".join(stacks)
                tree.wait()
            said.seek(0)
            text = said.read()
        self.row.update(seconds=round(time.monotonic() - begun, 2), code=code, said=flat(text),
                        outcome="good" if code == GOOD else "failed")
        for path in (pidfile, pidfile + ".said"):
            if os.path.exists(path):
                os.remove(path)
        if code == GOOD:
            self.remove()
        return self.row

    def remove(self):
        if self.way == "get":
            shutil.rmtree(self.name)
        else:
            self.lab.say("del", self.name)


def flat(text):
    return " ".join(text.split())[:1000]


def descendants(pid):
    """Returns the pids of all descendants of a process, including children of its threads."""
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                for child in map(int, file.read().split()):
                    found += [child, *descendants(child)]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def inner(pid):
    """Returns the pid of a process in its own pid namespace, or None if the process has ended."""
    try:
        with open("/proc/%d/status" % pid) as file:
            return int(next(line for line in file if line.startswith("NSpid")).split()[-1])
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        return None


def where(pid):
    try:
        with open("/proc/%d/comm" % pid) as name, open("/proc/%d/wchan" % pid) as file:
            return name.read().strip() + " " + file.read()
    except OSError:
        return "gone"


def follow(lab, copies, pauses):
    """Reads the events of the subject until the run ends, and copies every --each-th checkpoint."""
    process = subprocess.Popen([*lab.command, "events", "churn", "-f", "--json"], stdout=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL)
    count = 0
    lab.follower = process
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] != "checkpoint":
            lab.others.append(event)
            continue
        count += 1
        pauses.append(event["pause_us"])
        if count % lab.options.each == 0:
            copies.put(Image(lab, event, WAYS[count // lab.options.each % len(WAYS)]))


def judges(lab, copies, rows, lock):
    while (image := copies.get()) is not None:
        row = image.judge() if image.is_there else image.row
        with lock:
            lab.options.writer.writerow(row)
            lab.options.raw.flush()
            rows.append(row)
            if row["outcome"] == "failed":
                print("failed: %s" % row, lab.wrongs(), flush=True)


def campaign(options, scratch, say):
    lab = Lab(options, scratch)
    lab.others, lab.follower, pauses, rows, copies, lock = [], None, [], [], queue.Queue(), threading.Lock()
    follower = threading.Thread(target=follow, args=(lab, copies, pauses), daemon=True)
    follower.start()
    workers = [threading.Thread(target=judges, args=(lab, copies, rows, lock), daemon=True) for _ in range(options.judges)]
    for worker in workers:
        worker.start()
    begun, last = time.monotonic(), None
    while (passed := time.monotonic() - begun) < options.seconds and lab.process.poll() is None:
        time.sleep(min(5, options.seconds - passed))
        last = lab.status() or last
    alive = lab.process.poll() is None
    if alive:
        os.kill(lab.pid, signal.SIGUSR1)
    code = lab.process.wait(PATIENCE_S)
    seconds = time.monotonic() - begun
    time.sleep(1)
    lab.follower.terminate()
    follower.join()
    for _ in workers:
        copies.put(None)
    for worker in workers:
        worker.join()
    say("the original subject ran %.0f s and exited with %d (expected: %d)" % (seconds, code, GOOD))
    say("checkpoints: %d, %.2f each second; pause p50 %.0f us, p99 %.0f us, max %.0f us" % (
        len(pauses), len(pauses) / seconds, *(quantile(pauses, share) for share in (0.5, 0.99, 1.0))))
    say("refusals: %d, other events than checkpoints: %s" % (
        sum(one["count"] for one in last["refusals"]), sorted({one["event"] for one in lab.others})))
    with open(os.path.join(options.out, "images-%s-refusals.txt" % options.tag), "w") as file:
        file.writelines(json.dumps(event) + "\n" for event in lab.others)
    of = lambda outcome: sum(row["outcome"] == outcome for row in rows)
    say("images: %d copied and restored, %d found no error, %d failed, %d could not be copied" % (
        of("good") + of("failed"), of("good"), of("failed"), of("not copied")))
    for way in sorted(set(WAYS)):
        mine = [row for row in rows if row["way"] == way]
        say("  by %-5s %d, good %d, copied in p50 %.1f ms, max %.1f ms" % (
            way, len(mine), sum(row["outcome"] == "good" for row in mine),
            quantile([row["copy_ms"] for row in mine], 0.5), quantile([row["copy_ms"] for row in mine], 1.0)))
    wrongs = lab.wrongs()
    for line in wrongs:
        say("wrong: " + line)
    if of("failed"):
        kept = os.path.join(options.out, "images-%s-failed" % options.tag)
        shutil.copytree(scratch, kept, symlinks=True)
        say("the files of failed images are kept in " + kept)
    return alive and code == GOOD and not wrongs and rows and of("good") == len(rows)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--each", type=int, default=50, help="every EACH-th checkpoint is copied and restored")
    parser.add_argument("--every", default="10ms")
    parser.add_argument("--judges", type=int, default=2, help="number of images that are restored at the same time")
    parser.add_argument("--wild", action="store_true", help="the subject also creates and removes shared memory")
    options = parser.parse_args()
    findings = Findings("images", options)
    options.raw = open(findings.base + ".csv", "w", newline="")
    for line in [*findings.head, "seed: fixed in churn.c"]:
        options.raw.write("# %s\n" % line)
    options.writer = csv.DictWriter(options.raw, COLUMNS, lineterminator="\n")
    options.writer.writeheader()
    findings.run(lambda scratch: campaign(options, scratch, findings.say))


if __name__ == "__main__":
    main()
