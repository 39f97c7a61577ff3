"""Inserts, updates and deletes rows of an SQLite database. The transactions are the same in each run.

Usage: sqlite_job.py FILE MODE TRANSACTIONS PAUSE_S. MODE is the journal mode of SQLite: DELETE or WAL.
"""
import sqlite3
import sys
import time

FILE, MODE, TRANSACTIONS, PAUSE_S = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])


def main():
    base = sqlite3.connect(FILE, isolation_level=None)
    base.execute("PRAGMA journal_mode=" + MODE)
    base.execute("PRAGMA synchronous=NORMAL")
    base.execute("PRAGMA wal_autocheckpoint=50")
    base.execute("CREATE TABLE item (number INTEGER PRIMARY KEY, text TEXT, total INTEGER)")
    base.execute("CREATE INDEX by_text ON item (text)")
    total = 0
    for number in range(1, TRANSACTIONS + 1):
        total += number * 7919 % 10007
        base.execute("BEGIN IMMEDIATE")
        base.execute("INSERT INTO item VALUES (?, ?, ?)", (number, "%d " % (number * 7919 % 10007) * 40, total))
        base.execute("UPDATE item SET total = total + 1 WHERE number = ?", (number * 31 % number + 1,))
        if number % 7 == 0:
            base.execute("DELETE FROM item WHERE number = ?", (number // 2,))
        base.execute("COMMIT")
        time.sleep(PAUSE_S)
    base.close()


main()
