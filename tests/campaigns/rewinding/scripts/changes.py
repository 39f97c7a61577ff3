"""Makes many kinds of file changes repeatedly, in a pseudorandom order with a fixed seed.

Usage: changes.py FOLDER STEPS PAUSE_S. Sleeps PAUSE_S seconds after each of STEPS changes. The kinds of changes:

- content: write, pwrite, pwritev, sendfile, copy_file_range, splice, truncate, fallocate with holes, and writes to a
  shared mapping
- names: create, unlink, rename, exchange, link, symlink, mkdir, rmdir, mkfifo, and O_TMPFILE with a later linkat
- attributes: mode, owner, times, extended attributes

The script ends at the first error of a system call.
"""
import ctypes
import errno
import mmap
import os
import random
import sys
import time

FOLDER, STEPS, PAUSE_S = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
NAMES, BIG_BYTES = 24, 3 << 20
AT_FDCWD, AT_SYMLINK_FOLLOW, RENAME_EXCHANGE = -100, 0x400, 2
FALLOC_FL_PUNCH_HOLE_KEEP_SIZE = 3
LIBC = ctypes.CDLL(None, use_errno=True)
draw = random.Random(2027)


def path(*names):
    return os.path.join(FOLDER, *names)


def one(kind):
    """Returns a random name of a kind. The name may or may not exist."""
    return path("%s-%d" % (kind, draw.randrange(NAMES)))


def data(length):
    return draw.randbytes(length)


def made(name, length=3000):
    """Returns `name`. Creates the file if it does not exist."""
    if not os.path.lexists(name):
        with open(name, "wb") as file:
            file.write(data(length))
    return name


def check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def rewritten():
    with open(one("file"), "wb") as file:
        file.write(data(draw.randrange(20000)))


def appended():
    with open(one("file"), "ab") as file:
        file.write(data(draw.randrange(500)))


def in_place():
    file = os.open(made(one("file")), os.O_RDWR)
    os.pwrite(file, data(700), draw.randrange(9000))
    os.pwritev(file, [data(100), data(5000)], draw.randrange(9000))
    os.close(file)


def truncated():
    os.truncate(made(one("file")), draw.randrange(12000))


def renamed():
    os.rename(made(one("file")), one("file"))


def exchanged():
    first, second = made(one("file")), made(one("file"))
    if first != second:
        check(LIBC.renameat2(AT_FDCWD, first.encode(), AT_FDCWD, second.encode(), RENAME_EXCHANGE), "renameat2")


def removed():
    os.remove(made(one("file")))


def linked():
    source, target = made(one("file")), one("link")
    if os.path.lexists(target):
        os.remove(target)
    os.link(source, target)


def symlinked():
    target = one("symlink")
    if os.path.lexists(target):
        os.remove(target)
    os.symlink("file-%d" % draw.randrange(NAMES), target)


def folders():
    folder = one("folder")
    if not os.path.isdir(folder):
        os.mkdir(folder, 0o750)
        made(os.path.join(folder, "inner"), 400)
        return
    if draw.random() < 0.5:
        target = one("folder")
        if not os.path.exists(target):
            os.rename(folder, target)
        return
    os.remove(os.path.join(folder, "inner"))
    os.rmdir(folder)


def fifo():
    name = one("fifo")
    os.remove(name) if os.path.exists(name) else os.mkfifo(name, 0o640)


def modes():
    os.chmod(made(one("file")), draw.choice([0o600, 0o644, 0o755, 0o440, 0o4755]))


def owners():
    if os.geteuid() == 0:
        os.chown(made(one("file")), draw.randrange(1, 2000), draw.randrange(1, 2000))


def times():
    os.utime(made(one("file")), ns=(draw.randrange(10**18), draw.randrange(10**18)))


def attributes():
    name = made(one("file"))
    if "user.note" in os.listxattr(name) and draw.random() < 0.5:
        os.removexattr(name, "user.note")
    else:
        os.setxattr(name, "user.note", data(draw.randrange(1, 60)))


def copied():
    source, target = os.open(made(one("file")), os.O_RDONLY), os.open(made(one("other")), os.O_WRONLY)
    os.lseek(target, draw.randrange(20000), os.SEEK_SET)
    os.sendfile(target, source, None, 1 << 16)
    os.close(source)
    os.close(target)


def copied_in_the_kernel():
    source, target = os.open(made(one("file")), os.O_RDONLY), os.open(made(one("other")), os.O_RDWR)
    os.copy_file_range(source, target, 2500, 0, draw.randrange(6000))
    os.close(source)
    os.close(target)


def spliced():
    reader, writer = os.pipe()
    target = os.open(made(one("file")), os.O_WRONLY)
    os.write(writer, data(2000))
    if os.splice(reader, target, 2000, offset_dst=draw.randrange(6000)) != 2000:
        sys.exit("splice moved fewer bytes than requested")
    for descriptor in (reader, writer, target):
        os.close(descriptor)


def nameless():
    try:
        file = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as failure:
        if failure.errno in (errno.EOPNOTSUPP, errno.EISDIR):
            return
        raise
    os.write(file, data(2000))
    target = one("other")
    if os.path.exists(target):
        os.remove(target)
    source = b"/proc/self/fd/%d" % file
    check(LIBC.linkat(AT_FDCWD, source, AT_FDCWD, target.encode(), AT_SYMLINK_FOLLOW), "linkat")
    os.close(file)


class Big:
    """Two files that stay open: `big`, which is also mapped, and `gone`, whose name is removed."""

    def __init__(self):
        self.file = os.open(path("big"), os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self.file, BIG_BYTES)
        self.memory = mmap.mmap(self.file, BIG_BYTES)
        self.gone = open(path("gone"), "w+b")
        os.remove(path("gone"))

    def stores(self):
        at = draw.randrange(BIG_BYTES - 9000)
        self.memory[at:at + 9000] = data(9000)

    def written(self):
        os.pwrite(self.file, data(9000), draw.randrange(BIG_BYTES - 9000))

    def holes(self):
        check(LIBC.fallocate(self.file, FALLOC_FL_PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(draw.randrange(BIG_BYTES // 2)),
                             ctypes.c_long(20000)), "fallocate")

    def nameless(self):
        self.gone.seek(draw.randrange(50000))
        self.gone.write(data(3000))
        self.gone.flush()

    def end(self):
        """Copies the content of the removed file to a named file, so that this content is compared, too."""
        self.gone.seek(0)
        with open(path("was-gone"), "wb") as file:
            file.write(self.gone.read())


def main():
    big = Big()
    kinds = [rewritten, appended, in_place, truncated, renamed, exchanged, removed, linked, symlinked, folders, fifo, modes,
             owners, times, attributes, copied, copied_in_the_kernel, spliced, nameless, big.stores, big.written, big.holes,
             big.nameless]
    with open(path("journal"), "a") as journal:
        for step in range(STEPS):
            kind = draw.choice(kinds)
            kind()
            journal.write("%d %s\n" % (step, kind.__name__))
            journal.flush()
            time.sleep(PAUSE_S)
    big.end()


main()
