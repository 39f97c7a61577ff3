#!/usr/bin/env python3
"""Is a subject with threads, children and shared memory affected when `undying` is killed during a checkpoint?

The subject is churn.c, which continuously checks its own state. In each round, `undying run --adopt` takes 100
checkpoints per second of the running subject. It is killed with SIGKILL at a random moment. After each round, these
conditions must hold:

- The subject runs, and no process traces it.
- No process of the subject has a descriptor of a tracker (userfaultfd) open.
- Every image that the store lists is committed, and the newest image passes `undying verify`.
- In every --judge-th round: the newest image is restored, and the restored subject finds no error in its own state.

After the last round, the original subject must also find no error. Writes killed-TAG.txt. Exits with 1 if a condition
did not hold. The test crates/cli/tests/all/killed.rs does the same with a simple counter program.
"""
import json
import os
import random
import signal
import subprocess
import time

from campaign import GOOD, Findings, arguments, compile_churn, say_to
from images import Image, descendants
from lib.harness import runs, wait_for


class Lab:
    """The subject, its store, and the commands of `undying` that use them."""

    def __init__(self, options, scratch):
        self.options, self.scratch, self.store = options, scratch, os.path.join(scratch, "store")
        self.command, self.work = [options.undying, "--store", self.store], os.path.join(scratch, "work")
        os.mkdir(self.work)
        self.subject = subprocess.Popen([compile_churn(scratch), self.work], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        self.pid, self.checked = self.subject.pid, {"rounds": 0, "with an image": 0, "judged": 0}

    def say(self, *words):
        return say_to(self.command, *words)

    def guard(self):
        return subprocess.Popen([*self.command, "run", "--name", "churn", "--every", "10ms", "--restart", "never",
                                 "--adopt", str(self.pid)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)

    def images(self):
        said = self.say("ls", "churn", "--json")
        return json.loads(said.stdout) if said.returncode == 0 else []


def round_of(lab, number, latest, draw):
    """Runs `undying`, kills it, and checks the conditions. Returns the first failed condition, or None."""
    guardian = lab.guard()
    time.sleep(draw.uniform(0, latest))
    guardian.kill()
    guardian.wait()
    lab.checked["rounds"] += 1
    try:
        wait_for(lambda: lab.subject.poll() is not None or all(map(is_free, [lab.pid, *descendants(lab.pid)])), "the subject")
    except RuntimeError as failure:
        return str(failure)
    if lab.subject.poll() is not None:
        return "the subject exited with %d" % lab.subject.returncode
    if any(name.startswith("wrong.") for name in os.listdir(lab.work)):
        return "the subject found an error in its own state"
    try:
        wait_for(lambda: not opened_for_trackers(lab.pid), "descriptors of trackers to be closed")
    except RuntimeError as failure:
        return str(failure)
    images = lab.images()
    if not all(image["committed"] for image in images):
        return "an image is not committed: %s" % images
    if not images:
        return None
    lab.checked["with an image"] += 1
    said = lab.say("verify", "churn")
    if said.returncode:
        return "the newest image is damaged: " + said.stderr
    return judged(lab, images[-1]["seq"]) if number % lab.options.judge == 0 else None


def opened_for_trackers(pid):
    """Returns the open descriptors of trackers in the processes of the subject."""
    links = []
    for process in [pid, *descendants(pid)]:
        folder = "/proc/%d/fd" % process
        try:
            links += [link for name in os.listdir(folder) if (link := target(os.path.join(folder, name)))]
        except OSError:
            pass  # A short-lived child has ended.
    return [link for link in links if "userfaultfd" in link]


def target(link):
    """Returns the target of a link in /proc/PID/fd, or None if the subject has closed the descriptor."""
    try:
        return os.readlink(link)
    except OSError:
        return None


def judged(lab, seq):
    image = Image(lab, {"seq": seq, "time": "", "full": False}, "get")
    row = image.judge() if image.is_there else image.row
    lab.checked["judged"] += 1
    if row["outcome"] != "good":
        wrongs = [open(os.path.join(lab.work, name)).read() for name in os.listdir(lab.work) if name.startswith("wrong.")]
        return "image %d: %s %s" % (seq, row, wrongs)
    return None


def is_free(pid):
    """Returns whether the process is neither stopped nor traced. A process that has ended counts as free."""
    try:
        return runs(pid)
    except (RuntimeError, OSError):
        return True


def campaign(options, scratch, say):
    lab, draw, wrong, end = Lab(options, scratch), random.Random(options.seed), [], time.monotonic() + options.seconds
    try:
        for number in range(options.rounds):
            if time.monotonic() > end:
                break
            if failure := round_of(lab, number, options.latest, draw):
                wrong.append(failure)
                say("round %d: %s" % (number, failure))
                if lab.subject.poll() is not None:
                    break
        if lab.subject.poll() is None:
            os.kill(lab.pid, signal.SIGUSR1)
            code = lab.subject.wait(60)
            say("the subject exited with %d (expected: %d)" % (code, GOOD))
            wrong += [] if code == GOOD else ["the exit status of the subject"]
    finally:
        if lab.subject.poll() is None:
            lab.subject.kill()
    say(", ".join("%s: %d" % item for item in lab.checked.items()) + ", wrong: %d" % len(wrong))
    return not wrong


def main():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3600, help="time limit of the campaign, in seconds")
    parser.add_argument("--latest", type=float, default=0.3, help="latest moment of a kill in its round, in seconds")
    parser.add_argument("--judge", type=int, default=10, help="the newest image is restored in every JUDGE-th round")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    findings = Findings("killed", options)
    findings.say("seed %d" % options.seed)
    findings.run(lambda scratch: campaign(options, scratch, findings.say))


if __name__ == "__main__":
    main()
