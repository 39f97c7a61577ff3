#!/usr/bin/env bash
# Sends numbers through a pipeline of shells and programs, until the file `stop` exists in the current directory.
# At the end, the file `sum` has three values: the number of lines, the sum of the numbers, and the number of lines that
# are wrong or out of order.
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
