#!/usr/bin/env python3
"""Makes random file changes with the credentials of several users. Many of the calls fail.

Usage: rights.py ROOT SEED. Each line of standard input contains the number of an actor and a number of calls. For each
successful call, the script prints one line per change: `inode NUMBER ASPECT`, or `name DIRECTORY-NUMBER NAME`. After all
calls of a line, the script prints `done`.
"""

import ctypes
import os
import random
import socket
import sys

ROOT = sys.argv[1]
SEED = int(sys.argv[2])
LIBC = ctypes.CDLL(None, use_errno=True)

CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
FULL = None
# User, groups, capabilities. The first group is the primary group.
ACTORS = [
    (61001, [61001], 0),
    (61002, [61002], 0),
    (61001, [61001, 61010], 0),
    (61002, [61010], DAC_OVERRIDE),
    (61001, [61001], FOWNER),
    (61002, [61002], CHOWN),
    (61001, [61001], DAC_READ_SEARCH),
    (0, [0], 0),
    (0, [0], FULL),
]


def become(user, groups, capabilities):
    if capabilities is FULL:
        return
    os.setgroups(groups[1:])
    os.setresgid(groups[0], groups[0], groups[0])
    if user != 0:
        LIBC.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
        os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)(capabilities, capabilities, 0, 0, 0, 0)
    if LIBC.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


class Actor:
    def __init__(self, number):
        self.random = random.Random(SEED * 100 + number)
        self.said = []

    def path(self):
        folder = self.random.randrange(8)
        name = self.random.choice(["f0", "f1", "f2", "f3", "f4", "f5", "f6", "s", "n0", "n1", "s/f0", "s/n0"])
        return f"{ROOT}/d{folder}/{name}"

    def changed(self, path, aspect, descriptor=None):
        number = os.fstat(descriptor).st_ino if descriptor is not None else os.lstat(path).st_ino
        self.said.append(f"inode {number} {aspect}")

    def named(self, path):
        folder, name = os.path.split(path)
        self.said.append(f"name {os.stat(folder).st_ino} {name}")

    def open(self):
        path = self.path()
        flags = self.random.choice([os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDONLY])
        flags |= self.random.choice([0, 0, os.O_TRUNC, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC])
        was_there = os.path.lexists(path)
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o644)
        if not was_there:
            self.named(path)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            self.changed(path, "content", descriptor)
        if flags & (os.O_WRONLY | os.O_RDWR):
            os.write(descriptor, self.random.randbytes(self.random.randrange(1, 300)))
        os.close(descriptor)

    def cut(self):
        path = self.path()
        os.truncate(path, self.random.randrange(100))
        self.changed(path, "content")

    def cut_descriptor(self):
        path = self.path()
        descriptor = os.open(path, self.random.choice([os.O_RDONLY, os.O_RDONLY, os.O_RDWR]) | os.O_NONBLOCK)
        try:
            if self.random.random() < 0.5:
                os.ftruncate(descriptor, self.random.randrange(100))
            else:
                os.posix_fallocate(descriptor, 0, self.random.randrange(1, 2000))
            self.changed(path, "content", descriptor)
        finally:
            os.close(descriptor)

    def remove(self):
        path = self.path()
        folder = os.stat(os.path.dirname(path)).st_ino
        self.random.choice([os.unlink, os.unlink, os.rmdir])(path)
        self.said.append(f"name {folder} {os.path.basename(path)}")

    def make(self):
        path = self.path()
        way = self.random.randrange(4)
        if way == 0:
            os.mkdir(path)
        elif way == 1:
            os.symlink("nowhere", path)
        elif way == 2:
            os.mkfifo(path)
        else:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(path)
        self.named(path)

    def rename(self):
        one, other = self.path(), self.path()
        os.rename(one, other)
        self.named(one)
        self.named(other)

    def link(self):
        one, other = self.path(), self.path()
        os.link(one, other, follow_symlinks=False)
        self.named(other)

    def mode(self):
        path = self.path()
        if self.random.random() < 0.3:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.fchmod(descriptor, self.random.choice([0o600, 0o4755]))
                self.changed(path, "rights", descriptor)
            finally:
                os.close(descriptor)
        elif not os.path.islink(path):
            os.chmod(path, self.random.choice([0o600, 0o644, 0o666, 0o4755, 0o1777]))
            self.changed(path, "rights")

    def owner(self):
        path = self.path()
        user, group = self.random.choice([-1, 0, 61001, 61002]), self.random.choice([-1, 0, 61001, 61010])
        os.lchown(path, user, group)
        self.changed(path, "rights")

    def times(self):
        path = self.path()
        times = self.random.choice([None, (1, self.random.randrange(10**9))])
        os.utime(path, times, follow_symlinks=False)
        self.changed(path, "times")

    def extended(self):
        path = self.path()
        if self.random.random() < 0.6:
            os.setxattr(path, "user.note", self.random.randbytes(9), follow_symlinks=False)
        else:
            os.removexattr(path, "user.note", follow_symlinks=False)
        self.changed(path, "extended")

    def act(self, calls):
        ways = [self.open, self.open, self.open, self.cut, self.cut_descriptor, self.remove, self.remove, self.make]
        ways += [self.rename, self.rename, self.link, self.mode, self.mode, self.owner, self.times, self.extended]
        for _ in range(calls):
            try:
                self.random.choice(ways)()
            except OSError:
                # Most calls fail: the actor has no permission, the file is missing, or has the wrong type.
                pass
        said, self.said = self.said, []
        return "".join(f"{line}\n" for line in said)


def serve(number, orders, answers):
    os.umask(0o022)
    become(*ACTORS[number])
    actor = Actor(number)
    with os.fdopen(orders) as orders, os.fdopen(answers, "w") as answers:
        for line in orders:
            answers.write(actor.act(int(line)) + "done\n")
            answers.flush()
    os._exit(0)


def main():
    pipes = []
    for number in range(len(ACTORS)):
        orders, to_actor = os.pipe()
        from_actor, answers = os.pipe()
        if os.fork() == 0:
            serve(number, orders, answers)
        os.close(orders)
        os.close(answers)
        pipes.append((os.fdopen(to_actor, "w"), os.fdopen(from_actor)))
    for line in sys.stdin:
        number, calls = line.split()
        to_actor, from_actor = pipes[int(number)]
        print(calls, file=to_actor, flush=True)
        for answer in from_actor:
            print(answer, end="", flush=True)
            if answer == "done\n":
                break


main()
