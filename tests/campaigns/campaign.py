"""Shared code of the campaigns: common options, the file of findings, and the compilation of the subject churn.c."""
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

# Exit status of churn.c if all its checks have passed.
GOOD = 42


def arguments(text):
    """Returns an argument parser with the options that every campaign has."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--undying", type=os.path.abspath, default=newest("undying"))
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "benches"))
    parser.add_argument("--tag", default=datetime.date.today().isoformat())
    return parser


class Findings:
    """Writes the findings of a campaign to NAME-TAG.txt. Has a temporary directory, which is removed at the end."""

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
        """Calls `work(directory)`, and ends the program. The exit status is 0 if `work` returns true, else 1."""
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
    """Runs `undying` with these words as arguments. Returns the completed process with its output."""
    return subprocess.run([*command, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
