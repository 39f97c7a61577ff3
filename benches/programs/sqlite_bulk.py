"""A bulk load into an SQLite database: python3 sqlite_bulk.py DATABASE JOURNAL TRANSACTIONS SYNCHRONOUS

JOURNAL is wal or delete, SYNCHRONOUS is NORMAL or FULL. Each transaction inserts 20 rows and changes 4 older ones. The
database exists before, with its table `item`. The content follows from a fixed seed.
"""
import random
import sqlite3
import sys


def main(path, journal, transactions, synchronous):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=" + journal)
    connection.execute("PRAGMA synchronous=" + synchronous)
    source = random.Random(1)
    (rows,) = connection.execute("SELECT max(id) FROM item").fetchone()
    for _ in range(transactions):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO item(text) VALUES (?)", [(source.randbytes(300),) for _ in range(20)])
        for _ in range(4):
            change = (source.randbytes(300), source.randint(1, rows))
            connection.execute("UPDATE item SET text = ? WHERE id = ?", change)
        connection.execute("COMMIT")
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
