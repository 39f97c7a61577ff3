#!/usr/bin/env python3
"""Makes calls without privileges on the files in a directory, at the first line of standard input.

Usage: failing.py DIRECTORY. Each call that changes a file has a file of its own, with the name of the call. The script
prints the names of the calls that have succeeded, in one line. At the second line, it writes to the file `open`.
"""

import os
import sys

FOLDER = sys.argv[1]
USER = 61001


def path(name):
    return os.path.join(FOLDER, name)


def through_descriptor(name, call):
    descriptor = os.open(path(name), os.O_RDONLY)
    try:
        call(descriptor)
    finally:
        os.close(descriptor)


CALLS = {
    "truncate": lambda: os.truncate(path("truncate"), 0),
    "ftruncate": lambda: through_descriptor("ftruncate", lambda file: os.ftruncate(file, 0)),
    "fallocate": lambda: through_descriptor("fallocate", lambda file: os.posix_fallocate(file, 0, 9)),
    "chmod": lambda: os.chmod(path("chmod"), 0o666),
    "fchmod": lambda: through_descriptor("fchmod", lambda file: os.fchmod(file, 0o666)),
    "chown": lambda: os.chown(path("chown"), USER, -1),
    "utime": lambda: os.utime(path("utime"), (1, 1)),
    "utimenow": lambda: os.utime(path("utimenow")),
    "setxattr": lambda: os.setxattr(path("setxattr"), "user.a", b"b"),
    "open": lambda: os.open(path("open"), os.O_WRONLY),
    "opentrunc": lambda: os.open(path("opentrunc"), os.O_RDONLY | os.O_TRUNC),
    "create": lambda: os.open(path("create"), os.O_RDWR | os.O_CREAT | os.O_EXCL),
    "mkdir": lambda: os.mkdir(path("mkdir")),
    "rmdir": lambda: os.rmdir(path("rmdir")),
    "unlink": lambda: os.unlink(path("unlink")),
    "rename": lambda: os.rename(path("rename"), path("renamed")),
    "replace": lambda: os.rename(path("own"), path("replace")),
    "link": lambda: os.link(path("link"), path("linked")),
    "symlink": lambda: os.symlink("x", path("symlink")),
}


def main():
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    sys.stdin.readline()
    succeeded = []
    for name, call in CALLS.items():
        try:
            call()
            succeeded.append(name)
        except OSError:
            pass
    print(*succeeded, flush=True)
    sys.stdin.readline()
    with open(path("open"), "w", encoding="utf-8") as file:
        file.write("by the program")
    print("done", flush=True)
    sys.stdin.readline()


main()
