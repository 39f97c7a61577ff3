#!/bin/sh
# Installs the files beside this script: ./install.sh [PREFIX]. Without an argument: $PREFIX, or /usr/local.
set -eu
umask 022
here="$(cd "$(dirname "$0")" && pwd)"
prefix="${1:-${PREFIX:-/usr/local}}"
mkdir -p "$prefix"
cp -R "$here/bin" "$here/share" "$prefix/"
echo "undying is in $prefix/bin; $here/uninstall.sh $prefix removes it"
