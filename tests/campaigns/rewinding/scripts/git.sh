#!/bin/sh
# Creates commits, branches, merges and tags in a new git repository, with fixed dates. Also runs git gc.
# Usage: git.sh FOLDER COMMITS
set -eu
git init -q -b main "$1"
cd "$1"
commit=0
while [ "$commit" -lt "$2" ]; do
    commit=$((commit + 1))
    GIT_AUTHOR_DATE="$((1700000000 + commit * 60)) +0000"
    GIT_COMMITTER_DATE="$GIT_AUTHOR_DATE"
    export GIT_AUTHOR_DATE GIT_COMMITTER_DATE
    mkdir -p "part$((commit % 7))"
    for file in 1 2 3; do
        seq "$((commit * file))" "$((commit * file + 300))" >"part$((commit % 7))/file$((commit % 11))-$file"
    done
    seq 1 "$commit" >log.txt
    git add -A
    git commit -q -m "change $commit"
    if [ $((commit % 8)) -eq 0 ]; then
        git checkout -q -b "branch$commit"
        seq 1 "$commit" >"branch$commit.txt"
        git add -A
        git commit -q -m "branch $commit"
        git checkout -q main
        git merge -q --no-ff -m "merge $commit" "branch$commit"
        git tag "v$commit"
    fi
    if [ $((commit % 16)) -eq 0 ]; then
        git branch -q -D "branch$commit"
        git gc -q --prune=now
    fi
    if [ $((commit % 5)) -eq 0 ]; then
        git reset -q --hard HEAD~1
    fi
done
git gc -q --prune=now
