"""Part three of the demo: kills `make` of a C project five times, and checks the built program.

The program must be equal to the result of an undisturbed build. After each kill, `undying` restores make and its
compiler processes.
"""
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import time

from guarded import LIMIT_S, Guarded
from screen import Failure, milliseconds, number

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "field"))
from lib import project  # noqa: E402

UNITS, PARTS = 32, 14
KILLS, EVERY = 5, "100ms"
MAKEFILE = """\
program: $(patsubst %.c,%.o,$(wildcard *.c))
\tcc -o $@ $^
%.o: %.c
\tcc -O2 -c -o $@ $<
"""
COMMAND = ["make", "-s", "-j2"]


def run(screen, undying, folder):
    place = os.path.join(folder, "project")
    screen.title("3. A build with make and cc, killed five times")
    write(place)
    began = time.monotonic()
    subprocess.run([*COMMAND, "-C", place], timeout=LIMIT_S, check=True, stdin=subprocess.DEVNULL)
    due, files = digest(place), names(place)
    screen.line("undisturbed", f"{number(UNITS + 1)} files compiled in {time.monotonic() - began:.1f} s")
    screen.line("", f"sha256 {due}")
    shutil.rmtree(place)
    write(place)
    began = time.monotonic()
    build = Guarded(undying, os.path.join(folder, "guarded"), "build", [*COMMAND, "-C", place], EVERY,
                    ["--files", "rewind", "--max-restarts", f"{2 * KILLS}/1m"])
    screen.line("started", f"the same build again, under `{build.words}`")
    for count in range(1, KILLS + 1):
        build.wait("the object files", lambda: objects(place) >= (UNITS + 1) * count // (KILLS + 1))
        compiled = objects(place)
        build.kill()
        seq, took = back(build, count)
        screen.line("killed", f"make, after {compiled} object files; restored with its files from checkpoint {seq}, "
                              f"{milliseconds(took)} after undying noticed the death")
    status = build.wait_end()
    if status != 0:
        raise Failure(f"the build ended with status {status}:\n{build.said()}")
    found = digest(place)
    if found != due:
        raise Failure(f"the built program differs: sha256 {found}, expected {due}")
    if names(place) != files:
        raise Failure(f"files are missing or additional: {sorted(names(place) ^ files)}")
    screen.good("built", f"in {time.monotonic() - began:.1f} s, with {KILLS} kills of make")
    screen.line("", f"sha256 {found}")
    screen.good("the same", f"program, byte for byte, and the same {number(len(files))} files")


def write(place):
    """Writes the source files of the project. They are the same for each build."""
    os.makedirs(place)
    for name, text in [*project.sources(UNITS, PARTS), ("Makefile", MAKEFILE)]:
        with open(os.path.join(place, name), "w", encoding="ascii") as file:
            file.write(text)


def objects(place):
    return len(glob.glob(os.path.join(place, "*.o")))


def names(place):
    return set(os.listdir(place))


def digest(place):
    with open(os.path.join(place, "program"), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def back(build, count):
    """Waits for the restore after death number `count`. Returns the number of the checkpoint, and the seconds."""
    def followed():
        deaths = build.ask("deaths", build.name) or []
        return deaths[count - 1] if len(deaths) >= count and deaths[count - 1]["followed_by"] != "nothing" else None
    death = build.wait("the restore of make", followed)
    if death["followed_by"] != "restored":
        raise Failure(f"make was not restored; what happened is: {death['followed_by']}: {death['why']}")
    return death["seq"], death["took_us"] / 1e6
