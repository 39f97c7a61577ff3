"""A server that stores numbers in a DuckDB database. The arguments are a port and the path of the database.

The request `put N` inserts the number N, and is answered after the commit. The request `list` lists the numbers.
"""
import sys

import duckdb
import lines


def main():
    database = duckdb.connect(sys.argv[2])
    database.execute("CREATE TABLE IF NOT EXISTS item (number BIGINT PRIMARY KEY, text VARCHAR)")
    lines.serve(int(sys.argv[1]), lambda number: database.execute("INSERT INTO item VALUES (?, ?)", [number, "text " * 20]),
                lambda: [row[0] for row in database.execute("SELECT number FROM item").fetchall()])


main()
