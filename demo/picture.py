#!/usr/bin/env python3
"""Records a terminal session, and draws it as an animated picture: demo/picture.py [--out FILE.svg]

The script starts a counting program under `undying run` in a pseudoterminal, and kills the program with SIGKILL. It
records each line of the terminal with its time. The picture is an SVG file: each line appears at its recorded time.
A viewer without animation shows the whole session. Needs root.
"""
import argparse
import html
import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
COUNT = """import time
for step in range(1, 13):
    print("step %2d of 12" % step, flush=True)
    time.sleep(0.4)
"""
KILL_AFTER_S = 2.2
COMMAND = "undying run --every 50ms -- python3 count.py"
LINE_HEIGHT, LEFT, WIDTH, REST_S = 20, 16, 760, 3.0
COLOURS = {"prompt": "#8bd5ca", "program": "#e6e6e6", "undying": "#f5c26b", "kill": "#ed8796"}


def record(undying):
    """Runs the session. Returns its lines as (seconds since the start, kind, text)."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "count.py"), "w") as file:
            file.write(COUNT)
        words = [undying, "--store", os.path.join(folder, "store"), *COMMAND.split()[1:]]
        leader, follower = pty.openpty()
        begin = time.monotonic()
        process = subprocess.Popen(words, cwd=folder, stdin=follower, stdout=follower, stderr=follower,
                                   start_new_session=True)
        os.close(follower)
        lines, rest, killed = [(0.0, "prompt", "$ " + COMMAND)], b"", False
        while True:
            now = time.monotonic() - begin
            if not killed and now > KILL_AFTER_S:
                status = subprocess.run([*words[:3], "status", "--json"], capture_output=True, text=True, check=True)
                child = json.loads(status.stdout)[0]["pid"]
                lines.append((now, "kill", "  another terminal: $ kill -9 %d" % child))
                os.kill(child, signal.SIGKILL)
                killed = True
            if not select.select([leader], [], [], 0.02)[0]:
                continue
            try:
                part = os.read(leader, 4096)
            except OSError:
                break
            if not part:
                break
            *whole, rest = (rest + part).replace(b"\r", b"").split(b"\n")
            for line in whole:
                text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line.decode(errors="replace"))
                kind = "undying" if text.startswith("undying:") else "program"
                lines.append((time.monotonic() - begin, kind, text))
        if process.wait() != 0:
            raise SystemExit("the session ended with status %d" % process.returncode)
        return lines


def check(lines):
    """Exits with an error unless the program was restored and has printed each step once and in order."""
    steps = [text for _, kind, text in lines if kind == "program"]
    if not any("is back at checkpoint" in text for _, _, text in lines):
        raise SystemExit("the program was not restored")
    if steps != ["step %2d of 12" % step for step in range(1, 13)]:
        raise SystemExit("the program has skipped or repeated a step: %s" % steps)


def draw(lines):
    length = max(moment for moment, _, _ in lines) + REST_S
    height = LINE_HEIGHT * (len(lines) + 1) + 16
    rules, texts = [], []
    for place, (moment, kind, text) in enumerate(lines):
        at = 100 * moment / length
        # In the last percent of the time, all lines are hidden. Then the animation starts again.
        rules.append("@keyframes l%d{0%%,%.2f%%{opacity:0}%.2f%%,99%%{opacity:1}100%%{opacity:0}}"
                     % (place, max(at - 0.01, 0), at))
        texts.append('<text x="%d" y="%d" fill="%s" style="animation:l%d %.2fs infinite">%s</text>'
                     % (LEFT, LINE_HEIGHT * (place + 1) + 8, COLOURS[kind], place, length, html.escape(text)))
    return """<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img"
 aria-label="A program that counts is killed with kill -9, and continues at the next step">
<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}%s</style>
<rect width="100%%" height="100%%" rx="8" fill="#1e2030"/>
%s
</svg>
""" % (WIDTH, height, WIDTH, height, "".join(rules), "\n".join(texts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "kill.svg"))
    parser.add_argument("--undying", default=os.path.join(ROOT, "target", "release", "undying"))
    chosen = parser.parse_args()
    lines = record(os.path.abspath(chosen.undying))
    check(lines)
    with open(chosen.out, "w") as file:
        file.write(draw(lines))
    print("\n".join("%5.2f s  %s" % (moment, text) for moment, _, text in lines))


if __name__ == "__main__":
    main()
