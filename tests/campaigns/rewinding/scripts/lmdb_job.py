"""Fills an LMDB environment by stores through a shared mapping (MDB_WRITEMAP), and deletes again what is old.

Usage: lmdb_job.py FOLDER TRANSACTIONS PAUSE_S; with --dump FOLDER it prints the entries instead.
"""
import sys
import time

import lmdb

MAP_BYTES, KEPT = 32 << 20, 2000


def fill(folder, transactions, pause_s):
    total = 0
    with lmdb.open(folder, map_size=MAP_BYTES, writemap=True) as base:
        for number in range(1, transactions + 1):
            with base.begin(write=True) as change:
                for part in range(4):
                    total += number * 7919 % 10007 + part
                    change.put(b"%08d.%d" % (number, part), b"%d " % total * 30)
                if number > KEPT // 4:
                    change.delete(b"%08d.0" % (number - KEPT // 4))
                change.put(b"total", b"%d" % total)
            time.sleep(pause_s)


def dump(folder):
    with lmdb.open(folder, map_size=MAP_BYTES, readonly=True, lock=False) as base, base.begin() as view:
        for key, value in view.cursor():
            print(key.decode(), value.decode())
        print(sorted(view.stat().items()))


if sys.argv[1] == "--dump":
    dump(sys.argv[2])
else:
    fill(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
