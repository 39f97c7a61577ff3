#!/usr/bin/env bash
# Removes what packaging/install.sh has installed: packaging/uninstall.sh [PREFIX] [DESTDIR]
#
# Stores with checkpoints stay.
set -euo pipefail
to="${2:-}${1:-/usr/local}"
rm -f "$to/bin/undying" "$to/share/man/man1/undying.1.gz" "$to/share/bash-completion/completions/undying" \
    "$to/share/zsh/vendor-completions/_undying" "$to/share/zsh/site-functions/_undying" \
    "$to/share/fish/vendor_completions.d/undying.fish"
rm -rf "$to/share/doc/undying"
