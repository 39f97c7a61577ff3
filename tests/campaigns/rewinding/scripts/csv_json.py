"""Appends rows to CSV files, replaces totals.json by rename, and overwrites a header in place. Checks the rows.

Usage: csv_json.py FOLDER STEPS PAUSE_S. Between two replacements of totals.json, only the memory has the totals.
"""
import json
import os
import sys
import time

FOLDER, STEPS, PAUSE_S = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
REWRITE_EACH, ROTATE_EACH = 10, 400


def rewrite(name, value):
    new = os.path.join(FOLDER, name + ".new")
    with open(new, "w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, os.path.join(FOLDER, name))


def main():
    kept = open(os.path.join(FOLDER, "kept.csv"), "a")
    header = open(os.path.join(FOLDER, "header.bin"), "r+b")
    totals = {"rows": 0, "sum": 0, "last": None}
    for step in range(1, STEPS + 1):
        value = step * 7919 % 10007
        kept.write("%d,%d,%d\n" % (step, value, totals["sum"]))
        kept.flush()
        with open(os.path.join(FOLDER, "reopened-%d.csv" % (step % 3)), "a") as file:
            file.write("%d,%d\n" % (step, value))
        totals = {"rows": step, "sum": totals["sum"] + value, "last": value}
        header.seek(8 * (step % 512))
        header.write(totals["sum"].to_bytes(8, "little"))
        header.flush()
        if step % REWRITE_EACH == 0:
            rewrite("totals.json", totals)
        if step % ROTATE_EACH == 0:
            rotate(step)
        time.sleep(PAUSE_S)
    rewrite("totals.json", totals)
    check(totals)


def rotate(step):
    """Renames the CSV file and removes an older one, like log rotation."""
    path = os.path.join(FOLDER, "reopened-0.csv")
    os.rename(path, "%s.%d" % (path, step))
    older = "%s.%d" % (path, step - 2 * ROTATE_EACH)
    if os.path.exists(older):
        os.remove(older)


def check(totals):
    """Checks that kept.csv contains each row exactly once."""
    with open(os.path.join(FOLDER, "kept.csv")) as file:
        rows = [[int(word) for word in line.split(",")] for line in file]
    sums = 0
    for number, (step, value, before) in enumerate(rows, 1):
        if step != number or before != sums:
            sys.exit("row %d of kept.csv is %d,%d,%d; the sum before it is %d" % (number, step, value, before, sums))
        sums += value
    if (len(rows), sums) != (totals["rows"], totals["sum"]):
        sys.exit("kept.csv has %d rows of sum %d, the totals are %s" % (len(rows), sums, totals))


main()
