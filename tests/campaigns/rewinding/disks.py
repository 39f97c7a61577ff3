"""A folder on a file system of a chosen type: an ordinary folder where that fits, else a loop device."""
import os
import subprocess

from lib.system import Unsupported, end_everything

MAKERS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q"], "btrfs": ["mkfs.btrfs", "-q"]}
PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}
# The image is sparse.
IMAGE_BYTES = 8 << 30


class Disk:
    """`place` for the time of a `with`. Must lie in a mount namespace of its own, which outlives no process."""

    def __init__(self, kind, folder):
        self.kind, self.place, self.image = kind, os.path.join(folder, "p"), os.path.join(folder, "disk.img")
        self.is_mounted = False

    def __enter__(self):
        os.mkdir(self.place)
        if type_of(self.place) == self.kind:
            return self.place
        with open(self.image, "wb") as file:
            file.truncate(IMAGE_BYTES)
        tool(*MAKERS[self.kind], self.image)
        tool("mount", "-o", "loop", self.image, self.place)
        self.is_mounted = True
        os.chmod(self.place, 0o755)
        return self.place

    def __exit__(self, *_):
        if self.is_mounted:
            end_everything()
            # Lazily: the device goes with the last file that is open on it.
            subprocess.run(["umount", "-l", self.place], stdin=subprocess.DEVNULL, check=False)


def type_of(path):
    """The type of the file system of a path, as mount(8) names it."""
    said = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip()
    # ext2, ext3 and ext4 have one number.
    return "ext4" if said == "ext2/ext3" else said


def tool(*words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    except FileNotFoundError:
        raise Unsupported(words[0]) from None
    if done.returncode != 0:
        raise Unsupported("%s: %s" % (words[0], (done.stderr.strip() or "status %d" % done.returncode).splitlines()[-1]))
