#!/usr/bin/env python3
"""Changes files through shared mappings and in other ways. Each line of standard input contains the number of changes.

Usage: mapped.py ROOT SEED [crowd]. The script prints `done` after the changes of a line, and then waits for the next
line. The number 0 changes each page of a large file. With `crowd`, several processes store to one mapping without end, and the script prints `done` at once.
"""

import ctypes
import mmap
import os
import random
import sys
import time

ROOT = sys.argv[1]
RANDOM = random.Random(int(sys.argv[2]))
SIZES = {"large": 11 << 20, "middle": 2 << 20, "small": 100_000}
PAGE = 4096
LIBC = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32
MADV_REMOVE = 9
BLOCK = mmap.mmap(-1, 16 * PAGE)


class File:
    def __init__(self, name):
        self.path = os.path.join(ROOT, name)
        self.size = SIZES[name]
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT)
        old = os.fstat(self.fd).st_size
        if old < self.size:
            os.ftruncate(self.fd, self.size)
            if RANDOM.random() < 0.5:
                os.pwrite(self.fd, RANDOM.randbytes(self.size // 2), 0)
        self.size = os.fstat(self.fd).st_size
        self.map = mmap.mmap(self.fd, self.size)

    def store(self):
        at = RANDOM.randrange(self.size - 8)
        self.map[at : at + 8] = RANDOM.randbytes(8)

    def store_many(self):
        length = RANDOM.randrange(1, min(300_000, self.size))
        at = RANDOM.randrange(self.size - length)
        self.map[at : at + length] = RANDOM.randbytes(length)

    def store_hot(self):
        for page in range(0, min(self.size // PAGE, 300), 3):
            self.map[page * PAGE] = RANDOM.randrange(256)

    def write(self):
        os.pwrite(self.fd, RANDOM.randbytes(RANDOM.randrange(1, 20_000)), RANDOM.randrange(self.size))
        self.resize(os.fstat(self.fd).st_size)

    def cut(self):
        if RANDOM.random() < 0.3:
            size = RANDOM.choice([RANDOM.randrange(PAGE, self.size + 50_000), max(PAGE, self.size - RANDOM.randrange(PAGE))])
            os.ftruncate(self.fd, size)
            os.ftruncate(self.fd, max(size, self.size))
            self.resize(os.fstat(self.fd).st_size)
            if RANDOM.random() < 0.3:
                self.map.close()
                os.ftruncate(self.fd, size)
                self.map, self.size = mmap.mmap(self.fd, size), size

    def resize(self, size):
        if size != self.size:
            self.map.close()
            self.map, self.size = mmap.mmap(self.fd, size), size

    def allocate(self):
        mode = RANDOM.choice([PUNCH | KEEP_SIZE, PUNCH | KEEP_SIZE, ZERO, ZERO | KEEP_SIZE, 0])
        self.call_allocate(mode, RANDOM.randrange(self.size), RANDOM.randrange(1, 100_000))

    def move(self):
        if RANDOM.random() < 0.2:
            self.map.close()
            self.call_allocate(RANDOM.choice([COLLAPSE, INSERT]), 10 * PAGE, 3 * PAGE)
            self.size = os.fstat(self.fd).st_size
            self.map = mmap.mmap(self.fd, self.size)

    def call_allocate(self, mode, offset, length):
        LIBC.fallocate(self.fd, mode, ctypes.c_long(offset), ctypes.c_long(length))
        self.resize(os.fstat(self.fd).st_size)

    def remove_pages(self):
        page = RANDOM.randrange(self.size // PAGE)
        self.map.madvise(MADV_REMOVE, page * PAGE, PAGE)

    def write_direct(self):
        fd = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        BLOCK[:] = RANDOM.randbytes(len(BLOCK))
        os.pwritev(fd, [BLOCK], RANDOM.randrange(max(1, self.size // PAGE - 16)) * PAGE)
        os.close(fd)

    def copy_range(self):
        if RANDOM.random() < 0.5:
            # On some file systems, both ranges then share blocks.
            source, target = RANDOM.randrange(4) * PAGE, RANDOM.randrange(8, 20) * PAGE
            os.copy_file_range(self.fd, self.fd, 3 * PAGE, source, target)
        else:
            os.copy_file_range(self.fd, self.fd, 9_000, RANDOM.randrange(20_000), RANDOM.randrange(30_000, 90_000))

    def sync(self):
        RANDOM.choice([self.map.flush, lambda: os.fsync(self.fd), os.sync])()

    def write_back(self):
        LIBC.sync_file_range(self.fd, ctypes.c_long(0), ctypes.c_long(0), 2)

    def pause(self):
        time.sleep(RANDOM.random() * 0.03)

    def rename(self):
        if RANDOM.random() < 0.2:
            os.rename(self.path, self.path + ".moved")
            if RANDOM.random() < 0.5:
                os.rename(self.path + ".moved", self.path)
            else:
                self.map.close()
                os.close(self.fd)
                self.__init__(os.path.basename(self.path))

    def remove(self):
        if RANDOM.random() < 0.1:
            os.unlink(self.path)
            self.map.close()
            os.close(self.fd)
            self.__init__(os.path.basename(self.path))

    def map_again(self):
        self.map.close()
        if RANDOM.random() < 0.3:
            os.pwrite(self.fd, b"not mapped", RANDOM.randrange(self.size))
        self.size = os.fstat(self.fd).st_size
        self.map = mmap.mmap(self.fd, self.size)


STEPS = [File.store] * 20 + [File.store_many, File.write, File.sync, File.write_back] * 2
STEPS += [File.store_hot, File.cut, File.allocate, File.move, File.remove_pages, File.write_direct, File.copy_range]
STEPS += [File.pause, File.rename, File.remove, File.map_again]


def crowd(file):
    """Stores numbers that rise, each to a place that depends on the number."""
    for child in range(3):
        if os.fork() == 0:
            number = 0
            while True:
                number += 1
                page = (number * 37 + child * 911) % 1500
                at = page * PAGE + 8 * child
                file.map[at : at + 8] = number.to_bytes(8, "little")
                if number % 50 == 0:
                    os.pwrite(file.fd, number.to_bytes(8, "little"), (2000 + number % 300) * PAGE + 8 * child)
                    time.sleep(0.002)
                if number % 1000 == child:
                    file.map.flush()


FILES = [File(name) for name in SIZES]
if len(sys.argv) > 3:
    crowd(FILES[0])
for line in sys.stdin:
    steps = int(line)
    if steps == 0:
        FILES[0].map[:] = RANDOM.randbytes(FILES[0].size)
    for _ in range(steps):
        RANDOM.choice(STEPS)(RANDOM.choice(FILES))
    print("done", flush=True)
