#!/usr/bin/env python3
"""Makes one change with the rights of user 61001, who owns ROOT.

Usage: taken.py ROOT WAY. Makes the change at the first line of standard input, and prints an empty line. Then waits for
further lines.
"""

import os
import subprocess
import sys

ROOT, WAY = sys.argv[1:]


def path(name):
    return f"{ROOT}/{name}"


def attributes():
    os.chmod(path("capable"), 0o700)
    os.setxattr(path("noted"), "user.a", b"by the program")


def group():
    os.chmod(path("of a group"), 0o700)


def file():
    os.rename(path("f"), path("f moved"))


def directory():
    os.rename(path("d"), path("d moved"))


def contents(first_mode=0o640):
    for name, mode in [("noted", first_mode), ("capable", 0o640)]:
        os.chmod(path(name), mode)
        with open(path(name), "a") as file:
            file.write(", and by the program")


def first_open_to_all():
    contents(0o646)


def set_user_id():
    os.chmod(path("shared"), 0o774)


def raised():
    # A program with the set-user-ID bit of root.
    subprocess.run([path("raised"), path("of root/accounts"), path("of root/accounts.old")], check=True)


def group_directory():
    os.rename(path("g"), path("g moved"))


def main():
    os.setgroups([])
    os.setresgid(61001, 61001, 61001)
    os.setresuid(61001, 61001, 61001)
    sys.stdin.readline()
    ways = [attributes, group, file, directory, contents, first_open_to_all, set_user_id, raised, group_directory]
    next(way for way in ways if way.__name__ == WAY)()
    print(flush=True)
    sys.stdin.read()


main()
