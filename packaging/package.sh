#!/usr/bin/env bash
# Builds a package of a compiled program: packaging/package.sh deb|tar BINARY FOLDER
#
# `deb` is for Debian and Ubuntu and needs dpkg-deb. `tar` is for all distributions. Two builds from the same binary and
# commit are equal, byte for byte. The program is linked statically, so the packages depend on no library.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
kind="${1:?usage: packaging/package.sh deb|tar BINARY FOLDER}"
binary="$(realpath "${2:?the program is missing}")"
folder="$(realpath "${3:?the folder for the new package is missing}")"
version="$("$binary" --version | cut -d' ' -f2)"
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 0)}"
export SOURCE_DATE_EPOCH

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

deb() {
    local tree="$work/tree" size
    "$here/install.sh" "$binary" /usr "$tree"
    mkdir "$tree/DEBIAN"
    gzip -9n <"$here/../CHANGELOG.md" >"$tree/usr/share/doc/undying/changelog.gz"
    rm "$tree/usr/share/doc/undying/CHANGELOG.md"
    size="$(du -sk --exclude=DEBIAN "$tree" | cut -f1)"
    sed -e "s/@VERSION@/$version/" -e "s/@SIZE@/$size/" "$here/control" >"$tree/DEBIAN/control"
    install -m 755 "$here/postrm" "$tree/DEBIAN/postrm"
    (cd "$tree" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
    find "$tree" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$folder/undying_${version}_amd64.deb" >/dev/null
    echo "$folder/undying_${version}_amd64.deb"
}

tarball() {
    local name="undying-$version-x86_64-linux"
    "$here/install.sh" "$binary" / "$work/$name"
    install -m 755 "$here/install-tree.sh" "$work/$name/install.sh"
    install -m 755 "$here/uninstall.sh" "$work/$name/uninstall.sh"
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$name" |
        gzip -9n >"$folder/$name.tar.gz"
    echo "$folder/$name.tar.gz"
}

case "$kind" in
deb) deb ;;
tar) tarball ;;
*)
    echo "packaging/package.sh: unknown kind of package: $kind; use deb or tar" >&2
    exit 2
    ;;
esac
