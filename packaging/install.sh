#!/usr/bin/env bash
# Installs undying below a prefix: packaging/install.sh BINARY [PREFIX] [DESTDIR]
#
# The files are the program, its manual page, completions for bash, zsh and fish, the documents, and two examples: a
# systemd unit and a system file. DESTDIR is a prefix of every path, for the build of packages.
# `packaging/uninstall.sh` removes these files.
set -euo pipefail
umask 022
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(dirname "$here")"

binary="$(realpath "${1:?usage: packaging/install.sh BINARY [PREFIX] [DESTDIR]}")"
prefix="${2:-/usr/local}"
to="${3:-}$prefix"

# In Debian, zsh loads the completions of packages and of the administrator from different directories.
if [ "$prefix" = /usr ]; then zsh=zsh/vendor-completions; else zsh=zsh/site-functions; fi

put() { # MODE TARGET < CONTENT
    mkdir -p "$(dirname "$to/$2")"
    cat >"$to/$2"
    chmod "$1" "$to/$2"
}

put 755 bin/undying <"$binary"
# If strip (package binutils) is missing, the program keeps its debug symbols.
if [ -n "${STRIP-strip}" ] && command -v "${STRIP-strip}" >/dev/null; then "${STRIP-strip}" --strip-debug "$to/bin/undying"; fi
"$binary" man | gzip -9n | put 644 share/man/man1/undying.1.gz
"$binary" completions bash | put 644 share/bash-completion/completions/undying
"$binary" completions zsh | put 644 "share/$zsh/_undying"
"$binary" completions fish | put 644 share/fish/vendor_completions.d/undying.fish
put 644 share/doc/undying/examples/undying@.service <"$here/undying@.service"
put 644 share/doc/undying/examples/shop.toml <"$here/shop.toml"
cd "$root"
for file in README.md CHANGELOG.md SECURITY.md docs/*.md docs/operating/*.md; do
    put 644 "share/doc/undying/$file" <"$file"
done
put 644 share/doc/undying/copyright <"$here/copyright"
