"""What campaigns share: their options, where findings go, the subject that changes all the time."""
import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "benches"))
from lib.harness import newest  # noqa: E402

# What churn.c ends with when it has found all of itself right.
GOOD = 42


def arguments(text):
    """A parser with the options that every campaign has."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--undying", type=os.path.abspath, default=newest("undying"))
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "benches"))
    parser.add_argument("--tag", default=datetime.date.today().isoformat())
    return parser


class Findings:
    """NAME-TAG.txt, and what ends with the campaign: a folder for it, and the exit status."""

    def __init__(self, name, options):
        os.makedirs(options.out, exist_ok=True)
        self.base = os.path.join(options.out, "%s-%s" % (name, options.tag))
        self.file, self.scratch = open(self.base + ".txt", "w"), tempfile.mkdtemp(prefix="undying-%s-" % name)
        git = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
        self.head = [
            "command: %s %s" % (os.path.basename(sys.argv[0]), " ".join(sys.argv[1:])), "commit " + commit,
            "kernel %s, %d virtual CPUs, load average at the beginning: %.1f %.1f %.1f" % (
                platform.release(), os.cpu_count(), *os.getloadavg())]
        for line in self.head:
            self.say(line)

    def say(self, line):
        print(line, flush=True)
        self.file.write(line + "\n")
        self.file.flush()

    def run(self, work):
        """Does the work, which tells whether all held, and ends the program."""
        held = False
        try:
            held = work(self.scratch)
        finally:
            self.say("load average at the end: %.1f %.1f %.1f" % os.getloadavg())
            shutil.rmtree(self.scratch, ignore_errors=True)
        self.say("held" if held else "DID NOT HOLD")
        sys.exit(0 if held else 1)


def compile_churn(scratch):
    binary = os.path.join(scratch, "churn")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-o", binary, os.path.join(HERE, "churn.c"),
                    "-lpthread"], check=True)
    return binary


def say_to(command, *words):
    """What undying answers to some words."""
    return subprocess.run([*command, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
