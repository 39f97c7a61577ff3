"""A server that maps a file of 10 MiB shared and writable, as kafka, varnish and LMDB with MDB_WRITEMAP do.

The arguments are a port, the path of the mapped file, and the path of a journal. The request `put N` appends the number
N to the journal, and stores it in the mapped file. The request `list` lists the numbers that both files have.
"""
import mmap
import os
import sys

import lines

SIZE = 10 << 20


def main():
    port, path, journal_path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, SIZE)
    mapped, journal = mmap.mmap(file, SIZE), os.open(journal_path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def put(number):
        os.write(journal, b"%d\n" % number)
        mapped[8 * number:8 * number + 8] = number.to_bytes(8, "little")

    def stored():
        return set(lines.numbers_in(mapped[:])) & {int(line) for line in os.pread(journal, SIZE, 0).split()}

    lines.serve(port, put, stored)


main()
