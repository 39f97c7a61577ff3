#!/usr/bin/busybox sh
# The first process of the machine: mounts what programs expect, runs each line, and turns the machine off.
# Programs speak on the first serial line; the third one tells how each line ended.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
B=/usr/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mkdir -p /dev/pts /dev/shm
$B mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
$B mount -t tmpfs shm /dev/shm
$B mount -t tmpfs run /run
$B mount -t cgroup2 cgroup /sys/fs/cgroup
$B ln -sf /proc/self/fd /dev/fd
$B ip link set lo up
$B hostname vm
for line in /dev/ttyS0 /dev/ttyS2; do
    $B stty -F $line raw -echo
done
exec </dev/null >/dev/ttyS0 2>&1
for line in /vm/lines/*; do
    echo "vm: $($B sed '/^export /d; s/^cd [^&]*&& //; s:/[^ ]*/::g' $line)"
    began=$($B date +%s)
    # A session of its own; what a line leaves behind would disturb the next one.
    $B setsid $B sh $line
    status=$?
    echo "${line##*/} $status $(($($B date +%s) - began))" >/dev/ttyS2
done
$B sync
$B poweroff -f
