#!/bin/sh
# Writes to standard output: from the shell itself, from programs that the shell starts, and from pipelines.
# Usage: mix.sh PYTHON ROUNDS
set -eu
total=0
round=0
while [ "$round" -lt "$2" ]; do
    round=$((round + 1))
    total=$((total + round * 7919 % 10007))
    echo "round $round total $total"
    seq "$round" $((round + 400)) | awk '{ sum += $1; print NR, sum }' | tail -n 20
    printf '%s\n' "$total" | md5sum
    if [ $((round % 10)) -eq 0 ]; then
        "$1" -c "import sys
for step in range(200):
    print('python', $round, step * $total)
    sys.stdout.flush()"
    fi
    echo "$round $total" >>rounds.txt
done
echo "end $total"
