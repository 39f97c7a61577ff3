#!/usr/bin/env bash
# Runs all benchmarks of benches/ one after the other, or only the named ones: benches/all.sh [--quick] [QUESTION…]
#
# QUESTION is the name of a benchmark: its file name without `.py`. Each benchmark first runs in the default placement.
# A benchmark with the option --pin then also runs with --pin.
#
# Plots need matplotlib, which is installed into .venv (requirements.txt). Rows and plots go to target/benches/.
# If a benchmark fails, the next benchmark still runs. Failed benchmarks are listed at the end.
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
    echo "no plots: cannot install matplotlib" >&2

failed=()
for file in benches/*.py; do
    question="$(basename "$file" .py)"
    [ $# -eq 0 ] || [[ " $* " == *" $question "* ]] || continue
    printf '\n%s\n' "$question"
    options=()
    help="$("$python" "$file" --help)"
    if [ -n "$quick" ]; then
        # If a benchmark has no option --quick, three rounds are its short form.
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
