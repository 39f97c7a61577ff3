#!/usr/bin/env bash
# Runs every question of benches/, one after the other, or those named: benches/all.sh [--quick] [QUESTION…]
#
# Each question is asked in the default placement first, then with --pin where it has that option.
#
# Plots need matplotlib; it is put into .venv (requirements.txt). Rows and plots go to target/benches/.
# A question that fails is told, and does not keep the others from being asked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=
if [ "${1:-}" = --quick ]; then
    quick=--quick
    shift
fi
[ -x .venv/bin/python ] || python3 -m venv .venv
python=.venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check -r benches/requirements.txt ||
    echo "no plots: matplotlib could not be installed" >&2

failed=()
for file in benches/*.py; do
    question="$(basename "$file" .py)"
    [ $# -eq 0 ] || [[ " $* " == *" $question "* ]] || continue
    printf '\n%s\n' "$question"
    options=()
    help="$("$python" "$file" --help)"
    if [ -n "$quick" ]; then
        # Not every question has a short form; three rounds are one.
        if grep -q -- --quick <<<"$help"; then options=(--quick); else options=(--rounds 3); fi
    fi
    "$python" "$file" "${options[@]}" || failed+=("$question")
    grep -q -- --pin <<<"$help" || continue
    "$python" "$file" "${options[@]}" --pin --tag "$(date +%F)-pinned" || failed+=("$question --pin")
done
if [ ${#failed[@]} -ne 0 ]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
