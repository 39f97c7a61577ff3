#!/usr/bin/env bash
# Removes the files that install.sh has installed: uninstall.sh [PREFIX] [DESTDIR]. Without an argument, the prefix is
# $PREFIX from the environment, or /usr/local.
#
# Stores with checkpoints are not removed.
set -euo pipefail
to="${2:-}${1:-${PREFIX:-/usr/local}}"
rm -f "$to/bin/undying" "$to/share/man/man1/undying.1.gz" "$to/share/bash-completion/completions/undying" \
    "$to/share/zsh/vendor-completions/_undying" "$to/share/zsh/site-functions/_undying" \
    "$to/share/fish/vendor_completions.d/undying.fish"
rm -rf "$to/share/doc/undying"
