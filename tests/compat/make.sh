#!/bin/bash
# Makes fixtures with a program `undying`: make.sh UNDYING FOLDER. Needs root, a C compiler, tar and unshare(1).
#
# All paths of a fixture begin with /mnt, where the test mounts the unpacked folder. All pids are above 3000.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ "${3:-}" != inside ]; then
    lab=$(mktemp -d)
    cp "$1" "$lab/undying"
    mkdir -p "$2"
    folder=$(cd "$2" && pwd)
    # A connection to a descriptor of the caller would make `undying` refuse the program.
    for fd in $(ls /proc/self/fd); do [ "$fd" -le 2 ] || eval "exec $fd>&-"; done
    # The memory of a program contains its environment, and paths of this machine must not be in a fixture.
    cd /
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LAB="$lab" unshare --mount --pid --fork --kill-child --mount-proc \
        "$here/make.sh" /mnt/undying "$folder" inside
    rm -rf "$lab"
    "$here/machine.sh" > "$folder/machine"
    exit
fi

undying=$1 folder=$2
mount --bind "$LAB" /mnt
echo 3000 > /proc/sys/kernel/ns_last_pid

# Makes the directory of a fixture, with its program.
begin() {
    mkdir -m 0700 "/mnt/$1"
    ${CC:-cc} -O1 -Wall -Wextra -static -nostdlib -no-pie -fno-stack-protector -fno-asynchronous-unwind-tables \
        -fcf-protection=none -fno-tree-loop-distribute-patterns -Wl,--build-id=sha1 -Wl,-z,noseparate-code -s \
        -o "/mnt/$1/program" "$here/program.c"
}

# Packs the directory of a fixture. pax keeps the nanoseconds of times. Segments are nearly empty.
pack() {
    find "/mnt/$1" -name '*.seg' -exec fallocate --dig-holes {} ';'
    tar -C /mnt --format=pax --sparse -c "$1" | gzip -9n > "$folder/$1.tar.gz"
}

# Waits until the guardian of a fixture has taken five checkpoints.
await() {
    for _ in $(seq 600); do
        ! "$undying" --store "/mnt/$1/store" status job --json 2> /dev/null | grep -qE '"checkpoints": ?([5-9]|[1-9][0-9])' || return 0
        sleep 0.05
    done
    echo "$1: no checkpoints" >&2
    exit 1
}

# image NAME THREADS OPTION...: one image of a program that was killed with its checkpoint.
image() {
    name=$1 threads=$2
    shift 2
    begin "$name"
    setsid "/mnt/$name/program" "/mnt/$name" "$threads" < /dev/null > /dev/null 2>&1 &
    sleep 0.3
    "$undying" checkpoint $! --image "/mnt/$name/image" --kill "$@"
    wait $! 2> /dev/null || true
    pack "$name"
}

# subject NAME THREADS OPTION...: a guarded program with several checkpoints. It is stopped after the newest one.
subject() {
    name=$1 threads=$2
    shift 2
    begin "$name"
    "$undying" --store "/mnt/$name/store" run --name job --keep 6 --restart never "$@" -- \
        "/mnt/$name/program" "/mnt/$name" "$threads" < /dev/null > /dev/null 2>&1 &
    guardian=$!
    await "$name"
    root=$(pgrep -f "^/mnt/$name/program" | head -1)
}

# Waits until a checkpoint contains all changes of a program that changes nothing.
hold() {
    touch "/mnt/$1/hold"
    sleep 0.3
}

image one 1
image four 4
image lz4 4 --compress lz4
image zstd 4 --compress zstd

subject log 4 --every 60ms --files keep
hold log
kill -KILL "$root"
wait $guardian 2> /dev/null || true
"$undying" --store /mnt/log/store store job copy
pack log

# The newest checkpoint is older than the last changes of the file.
subject undo 1 --every 60ms --files rewind
kill -KILL "$root"
wait $guardian 2> /dev/null || true
pack undo

# The guardian died with the program, so nothing recorded the end.
subject killed 1 --every 60ms --files keep --compress zstd --compress-after 50ms
hold killed
kill -KILL $guardian "$root"
wait $guardian 2> /dev/null || true
sleep 0.5
pack killed

begin up
cat > /mnt/up/system.toml <<END
[system]
name = "plant"

[component.job]
command = ["/mnt/up/program", "/mnt/up", "1"]
policy = "checkpointed"
every = "60ms"
END
"$undying" --store /mnt/up/store up /mnt/up/system.toml < /dev/null > /dev/null 2>&1 &
guardian=$!
await up
"$undying" --store /mnt/up/store down
wait $guardian 2> /dev/null || true
pack up
