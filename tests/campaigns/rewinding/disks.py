"""A directory on a file system of a requested type. If the given directory has another type, mounts a loop device."""
import os
import subprocess

from lib.system import Unsupported, end_everything

MAKERS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q"], "btrfs": ["mkfs.btrfs", "-q"]}
PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}
# Size of the file behind the loop device. The file is sparse.
IMAGE_BYTES = 8 << 30


class Disk:
    """A context manager: provides the directory `place` on a file system of the type `kind`.

    Must be used in a private mount namespace. The mount then ends with the processes of this namespace at the latest.
    """

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
            # A lazy unmount: the loop device is removed when the last open file on it is closed.
            subprocess.run(["umount", "-l", self.place], stdin=subprocess.DEVNULL, check=False)


def type_of(path):
    """Returns the type of the file system of a path, with the name that mount(8) uses."""
    said = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip()
    # ext2, ext3 and ext4 have the same magic number.
    return "ext4" if said == "ext2/ext3" else said


def tool(*words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    except FileNotFoundError:
        raise Unsupported(words[0]) from None
    if done.returncode != 0:
        raise Unsupported("%s: %s" % (words[0], (done.stderr.strip() or "status %d" % done.returncode).splitlines()[-1]))
