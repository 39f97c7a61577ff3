#!/usr/bin/env bash
# Tries the Debian package where nothing else is: packaging/try-deb.sh PACKAGE.deb [FOLDER]
#
# Makes a minimal Debian 12 below FOLDER (debootstrap; kept if it was there), installs the package in it, uses it as its
# user would, purges it, and compares the files with those of before. Needs root and a network.
set -euo pipefail
package="$(realpath "${1:?usage: packaging/try-deb.sh PACKAGE.deb [FOLDER]}")"
own=
folder="${2:-}"
[ -n "$folder" ] || { own="$(mktemp -d)" && folder="$own/debian"; }

main() {
    [ "$(id -u)" -eq 0 ] || fail "it needs root"
    trap '[ -z "$own" ] || rm -rf "$own"' EXIT
    if [ ! -x "$folder/usr/bin/dpkg" ]; then
        say "making a minimal Debian 12"
        debootstrap --variant=minbase --include=man-db,bash-completion,procps bookworm "$folder" >"$folder.log" 2>&1 ||
            fail "debootstrap failed: $folder.log"
        # Minimal images leave manual pages out.
        rm -f "$folder/etc/dpkg/dpkg.cfg.d/excludes"
    fi
    cp "$package" "$folder/root/undying.deb"
    # What an earlier attempt has left.
    in_debian "rm -rf /tmp/*; dpkg --purge undying" >/dev/null 2>&1 || fail "no namespaces"
    files >"$folder.before"
    check installs "dpkg -i /root/undying.deb"
    check version "undying --version"
    check doctor "undying doctor"
    check man "man undying | grep -q 'undying checkpoint' && man -k undying | grep -q undying"
    check completions "source /usr/share/bash-completion/bash_completion && _completion_loader undying;
        COMP_WORDS=(undying chec) COMP_CWORD=1 COMP_LINE='undying chec' COMP_POINT=12;
        \$(complete -p undying | sed 's/.*-F \\([^ ]*\\).*/\\1/') undying chec undying;
        [[ \" \${COMPREPLY[*]} \" == *' checkpoint '* ]]"
    check example "undying check /usr/share/doc/undying/examples/shop.toml"
    # Files go back with the program: each line comes once although it was killed.
    check run "cd /tmp && printf '%s\n' 'for i in \$(seq 60); do echo \$i >>lines; sleep 0.02; done' >count.sh &&
        { { sleep 0.7; pkill -9 -xf 'sh count.sh'; } & } &&
        undying --store /tmp/store run --every 50ms -- sh count.sh && seq 60 | cmp - lines"
    check checkpoint "cd /tmp && { setsid sleep 300 </dev/null >/dev/null 2>&1 & } && sleep 0.2 &&
        undying checkpoint \$(pidof sleep) --image /tmp/image --kill && undying restore /tmp/image --detach &&
        pidof sleep && pkill sleep"
    in_debian "rm -rf /tmp/*"
    check purges "dpkg --purge undying"
    files >"$folder.after"
    diff "$folder.before" "$folder.after" >"$folder.diff" || fail "files differ after the purge:
$(cat "$folder.diff")"
    say "ok: leaves no trace ($(wc -l <"$folder.after") files compared)"
}

say() { printf 'try-deb: %s\n' "$*"; }

fail() {
    say "FAILED: $*" >&2
    exit 1
}

check() { # NAME COMMAND
    local out
    out="$(in_debian "$2" 2>&1)" || fail "$1: $out"
    say "ok: $1"
}

# In namespaces of its own, so that what is started ends with it, and without inherited descriptors: a pipe of the caller
# would be one of the program's.
in_debian() {
    unshare --mount --pid --fork --kill-child -- bash -c '
        for fd in $(ls /proc/self/fd); do [ "$fd" -le 2 ] || eval "exec $fd>&-"; done
        mount --make-rprivate /
        mount -t proc proc "$0/proc"
        mount --rbind /sys "$0/sys"
        mount --rbind /dev "$0/dev"
        exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C bash -c "$1"
    ' "$folder" "$1" </dev/null
}

# Each file with its size and mode, without what dpkg, apt and man-db note of any package.
files() {
    (cd "$folder" && find . -xdev \
        \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./var/lib/dpkg -o -path ./var/cache/man \) -prune -o \
        -path ./var/log/dpkg.log -o -path ./root/undying.deb -o -type d -printf '%p %m\n' -o -printf '%p %s %m\n' | LC_ALL=C sort)
    grep -h '^Package: undying' "$folder/var/lib/dpkg/status" || true
}

main
