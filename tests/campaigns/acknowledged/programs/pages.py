"""A server that rewrites 2 MiB of a file for each request, as a database that writes pages.

The arguments are a port and the path of the file. The request `put N` stores the number N in the first mebibyte of the
file, after the server has rewritten 512 random pages of the rest. The request `list` lists the stored numbers.
"""
import os
import random
import sys

import lines

ITEMS, SIZE, PAGE, PAGES = 1 << 20, 64 << 20, 4096, 512


def main():
    port, path = int(sys.argv[1]), sys.argv[2]
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    while (size := os.fstat(file).st_size) < SIZE:
        os.pwrite(file, bytes(1 << 20) if size < ITEMS else os.urandom(1 << 20), size)
    content, present = os.urandom(PAGE), set(lines.numbers_in(os.pread(file, ITEMS, 0)))

    def put(number):
        for _ in range(PAGES):
            os.pwrite(file, content, random.randrange(ITEMS // PAGE, SIZE // PAGE) * PAGE)
        os.pwrite(file, number.to_bytes(8, "little"), 8 * number)
        present.add(number)

    lines.serve(port, put, lambda: present)


main()
