#!/bin/busybox sh
# Before there is a disk: loads the modules that it needs, and goes on from it.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for module in virtio_pci virtio_blk; do
    /bin/busybox modprobe $module || echo "vm: $module cannot be loaded"
done
if ! /bin/busybox mount -t ext4 /dev/vda /root; then
    echo "vm: the disk cannot be mounted"
    /bin/busybox poweroff -f
fi
/bin/busybox umount /proc
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /vm/init
