#!/bin/sh
# Installs the files of the tarball that contains this script: ./install.sh [PREFIX]. Without an argument, the prefix
# is $PREFIX from the environment, or /usr/local.
set -eu
umask 022
here="$(cd "$(dirname "$0")" && pwd)"
prefix="${1:-${PREFIX:-/usr/local}}"
mkdir -p "$prefix"
cp -R "$here/bin" "$here/share" "$prefix/"
echo "installed $prefix/bin/undying; to remove it, run: $here/uninstall.sh $prefix"
