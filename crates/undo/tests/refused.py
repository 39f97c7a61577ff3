#!/usr/bin/env python3
"""Makes calls that fail although the user may change the names: the files have the wrong types, or a directory is not
empty. Also sets the times of a file that the user may write but does not own.

Usage: refused.py ROOT. Before the calls, becomes user 61001, who owns ROOT. After the calls, prints an empty line, or the
names of calls that have changed something. Then waits for further lines.
"""

import os
import sys

ROOT = sys.argv[1]


def path(name):
    return f"{ROOT}/{name}"


CALLS = {
    "file over directory": lambda: os.rename(path("f0"), path("full")),
    "directory over file": lambda: os.rename(path("empty"), path("f1")),
    "directory over full directory": lambda: os.rename(path("empty"), path("full")),
    "rmdir of a full directory": lambda: os.rmdir(path("full")),
    "rmdir of a file": lambda: os.rmdir(path("f2")),
    "unlink of a directory": lambda: os.unlink(path("empty")),
    "explicit times of a foreign file": lambda: os.utime(path("foreign"), (1, 2)),
}


def main():
    os.setgroups([])
    os.setresgid(61001, 61001, 61001)
    os.setresuid(61001, 61001, 61001)
    sys.stdin.readline()
    succeeded = []
    for name, call in CALLS.items():
        try:
            call()
            succeeded.append(name)
        except OSError:
            pass
    # Both names lead to the same file, so that this call succeeds and changes nothing.
    os.rename(path("f3"), path("f3 again"))
    if not os.path.exists(path("f3")):
        succeeded.append("rename to the same file")
    print(", ".join(succeeded), flush=True)
    sys.stdin.read()


main()
