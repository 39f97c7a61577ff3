#!/usr/bin/env python3
"""Makes random file changes. Each line of standard input contains the number of changes to make.

Usage: changing.py ROOT SEED [maps]. With `maps`, some changes are writes to shared mappings. The script prints `done`
after the changes of a line, and then waits for the next line. Meanwhile, the test can inspect the files.
"""

import mmap
import os
import random
import socket
import sys

ROOT = sys.argv[1]
RANDOM = random.Random(int(sys.argv[2]))
SIZES = [0, 1, 100, 4096, 5000, 70_000, 300_000, 1_500_000, 3_000_000]
OPEN_MAX = 12
FILES_MAX = 60

opened: list[int] = []
mapped: list[tuple[mmap.mmap, int]] = []


def paths(kind):
    found = []
    for folder, folders, files in os.walk(ROOT):
        for name in folders if kind == "folder" else files:
            path = os.path.join(folder, name)
            if kind == "folder" and os.path.islink(path):
                continue
            if kind == "file" and (os.path.islink(path) or not os.path.isfile(path)):
                continue
            found.append(path)
    return sorted(found)


def some(kind):
    found = paths(kind)
    return RANDOM.choice(found) if found else None


def folder():
    return RANDOM.choice([ROOT, *paths("folder")])


def fresh():
    return os.path.join(folder(), f"n{RANDOM.randrange(40)}")


def data(most=20_000):
    return RANDOM.randbytes(RANDOM.randrange(1, most))


def keep(fd):
    opened.append(fd)
    if len(opened) > OPEN_MAX:
        os.close(opened.pop(RANDOM.randrange(len(opened))))


def create():
    if len(paths("file")) > FILES_MAX:
        return
    fd = os.open(fresh(), os.O_RDWR | os.O_CREAT | RANDOM.choice([0, os.O_EXCL, os.O_TRUNC]), 0o640)
    os.write(fd, RANDOM.randbytes(RANDOM.choice(SIZES)))
    keep(fd)


def open_some():
    path = some("any")
    if path and os.path.isfile(path):
        mode = RANDOM.choice([os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND])
        keep(os.open(path, mode | RANDOM.choice([0, 0, 0, os.O_TRUNC])))


def write():
    if opened:
        fd = RANDOM.choice(opened)
        size = os.fstat(fd).st_size
        os.pwrite(fd, data(), RANDOM.randrange(size + 10_000))


def write_at_position():
    if opened:
        os.writev(RANDOM.choice(opened), [data(3000), data(3000)])


def write_through_path():
    if path := some("file"):
        with open(path, RANDOM.choice(["r+b", "ab"])) as file:
            file.seek(RANDOM.randrange(os.path.getsize(path) + 1))
            file.write(data())


def rewrite():
    if path := some("file"):
        with open(path, "wb") as file:
            file.write(data(200_000))


def replace():
    if path := some("file"):
        new = path + ".new"
        with open(new, "wb") as file:
            file.write(data())
        os.rename(new, path)


def cut():
    if opened and RANDOM.random() < 0.5:
        fd = RANDOM.choice(opened)
        os.ftruncate(fd, RANDOM.randrange(os.fstat(fd).st_size + 5000))
    elif path := some("file"):
        os.truncate(path, RANDOM.randrange(os.path.getsize(path) + 5000))


def allocate():
    if opened:
        os.posix_fallocate(RANDOM.choice(opened), RANDOM.randrange(100_000), RANDOM.randrange(1, 100_000))


def copy():
    source = some("file")
    if source and opened:
        target = RANDOM.choice(opened)
        with open(source, "rb") as file:
            way = RANDOM.randrange(3)
            length = RANDOM.randrange(1, 50_000)
            if way == 0:
                os.copy_file_range(file.fileno(), target, length, 0, RANDOM.randrange(50_000))
            elif way == 1:
                os.sendfile(target, file.fileno(), 0, length)
            else:
                read, write_end = os.pipe()
                os.write(write_end, data(4000))
                os.splice(read, target, 4000, offset_dst=RANDOM.randrange(50_000))
                os.close(read)
                os.close(write_end)


def rename():
    if path := some(RANDOM.choice(["file", "any", "folder"])):
        os.rename(path, fresh())


def remove():
    if path := some("any"):
        os.unlink(path)


def link():
    if path := some("file"):
        os.link(path, fresh())


def symlink():
    os.symlink(RANDOM.choice(["nowhere", "n1", ROOT + "/n2", "../n3"]), fresh())


def through_link():
    """Changes a file through a symbolic link."""
    path, name = some("file"), fresh()
    if path:
        os.symlink(os.path.relpath(path, os.path.dirname(name)), name)
        way = RANDOM.randrange(3)
        if way == 0:
            with open(name, RANDOM.choice(["wb", "ab"])) as file:
                file.write(data())
        elif way == 1:
            os.truncate(name, RANDOM.randrange(5000))
        else:
            os.chmod(name, RANDOM.choice([0o600, 0o644, 0o755]))


def make_folder():
    if len(paths("folder")) < 12:
        os.mkdir(fresh())


def remove_folder():
    if path := some("folder"):
        os.rmdir(path)


def attributes():
    if path := some("file"):
        way = RANDOM.randrange(5)
        if way == 3:
            os.setxattr(path, "user.note", data(50))
        elif way == 4:
            os.removexattr(path, "user.note")
        elif way == 0:
            os.chmod(path, RANDOM.choice([0o600, 0o644, 0o755, 0o4711]))
        elif way == 1:
            os.utime(path, (RANDOM.randrange(10**9), RANDOM.randrange(10**9)))
        else:
            os.chown(path, RANDOM.randrange(3), RANDOM.randrange(3))


def map_some():
    path = some("file")
    if path and 0 < os.path.getsize(path) < 400_000:
        with open(path, "r+b") as file:
            mapped.append((mmap.mmap(file.fileno(), 0), os.open(path, os.O_RDONLY)))
        if len(mapped) > 3:
            area, fd = mapped.pop(0)
            area.close()
            os.close(fd)


def store():
    if mapped:
        area, fd = RANDOM.choice(mapped)
        # A write to the mapping after the end of the file can raise SIGBUS.
        length = min(len(area), os.fstat(fd).st_size)
        if length > 0:
            at = RANDOM.randrange(length)
            part = data(2000)[: length - at]
            area[at : at + len(part)] = part


def in_child():
    """Starts a child, which writes to a received descriptor (SCM_RIGHTS), and to a file that it opens."""
    if not opened:
        return
    ours, theirs = socket.socketpair()
    fd, part, at = RANDOM.choice(opened), data(), RANDOM.randrange(50_000)
    name = fresh()
    child = os.fork()
    if child == 0:
        try:
            _, received, _, _ = socket.recv_fds(theirs, 1, 1)
            os.pwrite(received[0], part, at)
            with open(name, "ab") as file:
                file.write(part)
        finally:
            os._exit(0)
    socket.send_fds(ours, [b"x"], [fd])
    os.waitpid(child, 0)
    ours.close()
    theirs.close()


def nameless():
    fd = os.open(folder(), os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, data())
    try:
        os.link(f"/proc/self/fd/{fd}", fresh(), follow_symlinks=True)
    finally:
        keep(fd)


STEPS = [
    create, create, open_some, open_some, write, write, write, write, write_at_position, write_through_path, rewrite,
    replace, cut, allocate, copy, copy, rename, rename, remove, remove, link, symlink, through_link, make_folder,
    remove_folder, attributes, in_child, nameless,
]
if len(sys.argv) > 3:
    STEPS += [map_some, store, store]


def safely(step):
    try:
        step()
    except OSError:
        # Examples: the name exists, the directory is not empty, the target of a link does not exist.
        pass


def main():
    os.umask(0o022)
    for line in sys.stdin:
        for _ in range(int(line)):
            step = RANDOM.choice(STEPS)
            if os.environ.get("CHANGING_TELLS"):
                print(step.__name__, file=sys.stderr, flush=True)
            safely(step)
        print("done", flush=True)


main()
