#!/usr/bin/env bash
# Installs undying below a prefix: packaging/install.sh BINARY [PREFIX] [DESTDIR]
#
# Files: the program, its manual page, completions of bash, zsh and fish, a systemd unit as an example, the documents.
# DESTDIR is put before every path, for packages. `packaging/uninstall.sh` removes what this installs.
set -euo pipefail
umask 022
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(dirname "$here")"

binary="$(realpath "${1:?usage: packaging/install.sh BINARY [PREFIX] [DESTDIR]}")"
prefix="${2:-/usr/local}"
to="${3:-}$prefix"

# Debian's shells look for completions of packages elsewhere than for those of the administrator.
if [ "$prefix" = /usr ]; then zsh=zsh/vendor-completions; else zsh=zsh/site-functions; fi

put() { # MODE TARGET < CONTENT
    mkdir -p "$(dirname "$to/$2")"
    cat >"$to/$2"
    chmod "$1" "$to/$2"
}

put 755 bin/undying <"$binary"
# Without binutils the program keeps its symbols.
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
