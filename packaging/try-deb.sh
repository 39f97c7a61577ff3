#!/usr/bin/env bash
# Tests the Debian package in a minimal Debian system: packaging/try-deb.sh PACKAGE.deb [FOLDER]
#
# The script creates a minimal Debian 12 in FOLDER with debootstrap. If FOLDER already contains a system, the script
# uses this system. Without FOLDER, it uses a temporary directory. The script installs the package, runs its commands,
# and purges the package. Then it compares the files of the system with the files before the installation. Needs root
# and a network.
set -euo pipefail
package="$(realpath "${1:?usage: packaging/try-deb.sh PACKAGE.deb [FOLDER]}")"
own=
folder="${2:-}"
[ -n "$folder" ] || { own="$(mktemp -d)" && folder="$own/debian"; }

main() {
    [ "$(id -u)" -eq 0 ] || fail "try-deb.sh needs root"
    trap '[ -z "$own" ] || rm -rf "$own"' EXIT
    if [ ! -x "$folder/usr/bin/dpkg" ]; then
        say "creating a minimal Debian 12"
        debootstrap --variant=minbase --include=man-db,bash-completion,procps bookworm "$folder" >"$folder.log" 2>&1 ||
            fail "debootstrap failed; its output is in $folder.log"
        # By default, dpkg does not install manual pages in a minimal system.
        rm -f "$folder/etc/dpkg/dpkg.cfg.d/excludes"
    fi
    cp "$package" "$folder/root/undying.deb"
    # Removes files and the package of an earlier run.
    in_debian "rm -rf /tmp/*; dpkg --purge undying" >/dev/null 2>&1 || fail "cannot run a command in new namespaces"
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
    # The file is rolled back with the program: it contains each line once, although the program was killed.
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
    say "ok: the purge leaves no files ($(wc -l <"$folder.after") files compared)"
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

# Runs a command in the Debian system, in new mount and PID namespaces. When the command ends, the kernel kills all its
# processes. Inherited descriptors are closed: otherwise, a pipe of the caller would be a descriptor of the program.
in_debian() { # COMMAND
    unshare --mount --pid --fork --kill-child -- bash -c '
        for fd in $(ls /proc/self/fd); do [ "$fd" -le 2 ] || eval "exec $fd>&-"; done
        mount --make-rprivate /
        mount -t proc proc "$0/proc"
        mount --rbind /sys "$0/sys"
        mount --rbind /dev "$0/dev"
        exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C bash -c "$1"
    ' "$folder" "$1" </dev/null
}

# Prints each file with its size and mode, without the databases and logs that dpkg and man-db change for every package.
files() {
    (cd "$folder" && find . -xdev \
        \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./var/lib/dpkg -o -path ./var/cache/man \) -prune -o \
        -path ./var/log/dpkg.log -o -path ./root/undying.deb -o -type d -printf '%p %m\n' -o -printf '%p %s %m\n' | LC_ALL=C sort)
    grep -h '^Package: undying' "$folder/var/lib/dpkg/status" || true
}

main
