#!/usr/bin/env bash
# Numbers through a pipeline of shells and programs, until the file `stop` appears in the current folder.
# At the end `sum` holds how many lines came through, their sum, and how many were out of order.
set -o pipefail
number=0
while [ ! -e stop ]; do
    number=$((number + 1))
    echo "$number"
done |
    while read -r line; do
        echo "$line $((line * line))"
    done |
    tee squares |
    sed -u 's/ /:/' |
    awk -F: '{ if ($1 != NR || $2 != $1 * $1) wrong++; sum += $1 } END { printf "%d %.0f %d\n", NR, sum, wrong }' >sum
