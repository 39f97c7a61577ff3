"""Adds entries to an LMDB environment, and deletes old entries.

Usage: lmdb_job.py write|map FOLDER TRANSACTIONS PAUSE_S. With `write`, LMDB writes its file by system calls. With
`map`, LMDB writes to a shared mapping of the file (MDB_WRITEMAP). `lmdb_job.py dump FOLDER` prints the entries.
"""
import sys
import time

import lmdb

# The size of the mapping must be below 8 MiB: the most that a checkpoint copies of mapped files during the pause.
MAP_BYTES, KEPT = 7 << 20, 500


def fill(how, folder, transactions, pause_s):
    total = 0
    with lmdb.open(folder, map_size=MAP_BYTES, writemap=how == "map") as base:
        for number in range(1, transactions + 1):
            with base.begin(write=True) as change:
                for part in range(4):
                    total += number * 7919 % 10007 + part
                    change.put(b"%08d.%d" % (number, part), b"%d " % total * 30)
                if number > KEPT:
                    for part in range(4):
                        change.delete(b"%08d.%d" % (number - KEPT, part))
                change.put(b"total", b"%d" % total)
            time.sleep(pause_s)


def dump(folder):
    with lmdb.open(folder, map_size=MAP_BYTES, readonly=True, lock=False) as base, base.begin() as view:
        for key, value in view.cursor():
            print(key.decode(), value.decode())
        print(sorted(view.stat().items()))


if sys.argv[1] == "dump":
    dump(sys.argv[2])
else:
    fill(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
