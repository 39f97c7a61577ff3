#!/usr/bin/env bash
# The demo: programs and a system of programs are killed with SIGKILL, and go on. `make demo` builds first and then
# runs this.
#
# Installs what is missing (Debian, Ubuntu), or says what to install. Everything it makes lies in one temporary
# folder, and is gone when it ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly UNDYING="${UNDYING_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/release/undying}"
# A command, and the Debian package that brings it.
readonly PROGRAMS=(redis-server:redis-server redis-cli:redis-tools python3:python3 make:make cc:build-essential)

main() {
    become_root "$@"
    install_missing
    [ -x "$UNDYING" ] || die "there is no $UNDYING; build it with \`make build\`"
    exec python3 demo/demo.py "$UNDYING"
}

say() { printf 'demo: %s\n' "$*"; }

die() {
    say "$*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# The same pid again needs CAP_CHECKPOINT_RESTORE, which root has.
become_root() {
    [ "$(id -u)" -ne 0 ] || return 0
    has sudo || die "this needs root: only root may give a program its old pid again; run \`sudo make demo\`"
    say "only root may give a program its old pid again; going on with sudo"
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
    apt-get update -qq || say "the package lists cannot be renewed; trying with the old ones"
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null ||
        die "cannot install ${missing[*]}; please install them, then run \`make demo\` again"
    for pair in "${PROGRAMS[@]}"; do
        has "${pair%%:*}" || die "${pair%%:*} is still missing; please install it, then run \`make demo\` again"
    done
}

main "$@"
