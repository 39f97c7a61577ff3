#!/usr/bin/env bash
# Runs the demo: programs, and a system of programs, are killed with SIGKILL and continue. `make demo` builds undying,
# and then runs this script.
#
# On Debian and Ubuntu, the script installs missing packages. On other systems, it prints which packages are missing.
# All files of the demo are in one temporary folder, which is removed at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly UNDYING="${UNDYING_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/release/undying}"
# Each entry is a command and the Debian package that contains it.
readonly PROGRAMS=(redis-server:redis-server redis-cli:redis-tools python3:python3 make:make cc:build-essential)

main() {
    become_root "$@"
    install_missing
    [ -x "$UNDYING" ] || die "$UNDYING does not exist; build it with \`make build\`"
    exec python3 demo/demo.py "$UNDYING"
}

say() { printf 'demo: %s\n' "$*"; }

die() {
    say "$*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# To create a process with a given pid, a process needs CAP_CHECKPOINT_RESTORE. Root has this capability.
become_root() {
    [ "$(id -u)" -ne 0 ] || return 0
    has sudo || die "only root may restore a program with its old pid; run \`sudo make demo\`"
    say "only root may restore a program with its old pid; continuing with sudo"
    exec sudo UNDYING_BIN="$UNDYING" "$PWD/demo/run.sh" "$@"
}

install_missing() {
    local pair missing=()
    for pair in "${PROGRAMS[@]}"; do
        has "${pair%%:*}" || missing+=("${pair#*:}")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    has apt-get || die "please install ${missing[*]} first, then run \`make demo\` again"
    say "installing ${missing[*]} (apt-get)"
    apt-get update -qq || say "cannot update the package lists; using the old lists"
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null ||
        die "cannot install ${missing[*]}; please install them, then run \`make demo\` again"
    for pair in "${PROGRAMS[@]}"; do
        has "${pair%%:*}" || die "${pair%%:*} is still missing; please install it, then run \`make demo\` again"
    done
}

main "$@"
