"""The output of the demo: titles, lines with a label, and progress.

On a terminal, a progress line is updated in place. Otherwise, progress is printed as separate lines.
"""
import sys
import time

LABEL_WIDTH = 13
BAR_WIDTH = 28
# Number of progress lines if the output is not a terminal.
PLAIN_STEPS = 4


class Failure(Exception):
    """A check of the demo has failed, or a requirement is missing."""


class Screen:
    """Writes to standard output."""

    def __init__(self):
        self.terminal = sys.stdout.isatty()
        self.open_line = False
        self.plain_step = 0

    def title(self, text):
        self.write(f"\n{self.bold(text)}\n")

    def line(self, label, text):
        self.write(f"  {label:{LABEL_WIDTH}}{text}\n")

    def above(self, label, text):
        """Prints a line above the progress line. The next call of `progress` prints the progress line again."""
        if self.open_line:
            sys.stdout.write("\r\033[K")
            self.open_line = False
        self.line(label, text)

    def good(self, label, text):
        self.line(label, self.colour("32", text))

    def failed(self, text):
        self.write(f"\n{self.colour('31', 'failed')}: {text}\n")

    def progress(self, label, done, total, text):
        """Shows a progress bar. At the last call, `done` equals `total`."""
        share = done / total
        if self.terminal:
            bar = "#" * int(BAR_WIDTH * share)
            sys.stdout.write(f"\r\033[K  {label:{LABEL_WIDTH}}[{bar:.<{BAR_WIDTH}}] {text}")
            self.open_line = True
        elif int(share * PLAIN_STEPS) > self.plain_step or done == total:
            self.plain_step = int(share * PLAIN_STEPS)
            sys.stdout.write(f"  {label:{LABEL_WIDTH}}{share:4.0%}  {text}\n")
        if done == total:
            self.plain_step = 0
            self.close()
        sys.stdout.flush()

    def wait(self, label, seconds, text):
        """Waits for `seconds`, and shows the progress."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            self.progress(label, passed, seconds, text())
            time.sleep(0.05)
        self.progress(label, seconds, seconds, text())

    def write(self, text):
        self.close()
        sys.stdout.write(text)
        sys.stdout.flush()

    def close(self):
        if self.open_line:
            sys.stdout.write("\n")
            self.open_line = False

    def bold(self, text):
        return self.colour("1", text)

    def colour(self, code, text):
        return f"\033[{code}m{text}\033[0m" if self.terminal else text


def number(value):
    return f"{value:,}"


def milliseconds(seconds):
    value = 1000 * seconds
    return f"{value:.1f} ms" if value < 1000 else f"{seconds:.2f} s"
