#!/usr/bin/env bash
# Writes transactions with sqlite3, one after the other, until the file `stop` exists in the current directory.
{
    echo 'PRAGMA synchronous = OFF;'
    echo 'CREATE TABLE entries (id INTEGER PRIMARY KEY, square INTEGER NOT NULL);'
    number=0
    while [ ! -e stop ]; do
        number=$((number + 1))
        echo "INSERT INTO entries VALUES ($number, $((number * number)));"
        if [ $((number % 50)) -eq 0 ]; then
            echo "SELECT COUNT(*), MAX(id) FROM entries;"
        fi
    done
} | sqlite3 -batch -bail base >counts
