"""Compares all files below two directories.

Compared: names, types, modes, owners, content, targets of symbolic links, hard links, extended attributes.
Not compared: ctime, atime, inode numbers, and hard links outside of the directory. `odd_times` compares times of
modification.
"""
import fnmatch
import hashlib
import os
import stat

KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "fifo",
         stat.S_IFSOCK: "socket", stat.S_IFCHR: "character device", stat.S_IFBLK: "block device"}
BLOCK = 1 << 20


class Tree:
    """The files below a directory. Files that match `ignored` are omitted. Files that match `loose` have no content and
    no size here, so these are not compared."""

    def __init__(self, root, ignored=(), loose=()):
        self.root, self.entries, inodes = root, {}, {}
        for name in names_under(root):
            if matches(name, ignored):
                continue
            found = os.lstat(os.path.join(root, name))
            self.entries[name] = self.entry(name, found, matches(name, loose))
            if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
                inodes.setdefault((found.st_dev, found.st_ino), []).append(name)
        for names in inodes.values():
            for name in names:
                self.entries[name]["names"] = tuple(sorted(names))

    def entry(self, name, found, is_loose):
        path = os.path.join(self.root, name)
        entry = {"type": KINDS.get(stat.S_IFMT(found.st_mode), "unknown"), "mode": oct(stat.S_IMODE(found.st_mode)),
                 "owner": "%d:%d" % (found.st_uid, found.st_gid), "names": (name,), "mtime": found.st_mtime_ns}
        if entry["type"] == "file" and not is_loose:
            entry["size"], entry["content"] = found.st_size, digest(path)
        if entry["type"] == "symbolic link":
            entry["target"] = os.readlink(path)
        if entry["type"] in ("file", "folder"):
            entry["attributes"] = tuple((key, os.getxattr(path, key)) for key in sorted(os.listxattr(path)))
        return entry

    def differences(self, due):
        """Returns the differences from the expected tree, as lines of text."""
        lines = ["%s is missing" % name for name in sorted(due.entries.keys() - self.entries.keys())]
        for name, entry in sorted(self.entries.items()):
            if name not in due.entries:
                lines.append("%s is not expected (%s, %s bytes)" % (name, entry["type"], entry.get("size", "no")))
                continue
            wanted = due.entries[name]
            differing = [key for key in wanted.keys() | entry.keys() if key != "mtime" and wanted.get(key) != entry.get(key)]
            if "content" in differing:
                lines.append("%s: %s" % (name, self.first_byte(name, due)))
            lines += ["%s: %s is %s instead of %s" % (name, key, entry.get(key), wanted.get(key))
                      for key in sorted(differing) if key not in ("content", "size")]
        return lines

    def first_byte(self, name, due):
        """Returns the offset of the first different byte, as text."""
        sizes = "%d bytes instead of %d" % (self.entries[name]["size"], due.entries[name]["size"])
        with open(os.path.join(self.root, name), "rb") as one, open(os.path.join(due.root, name), "rb") as other:
            at = 0
            while True:
                found, wanted = one.read(BLOCK), other.read(BLOCK)
                if found != wanted:
                    at += next((n for n, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
                    return "content differs from byte %d, %s" % (at, sizes)
                at += len(found)
                if not found:
                    return "content differed at the first read, but not at the second, %s" % sizes

    def odd_times(self, due, begin, due_begin):
        """Returns the names with an unexpected mtime.

        If the reference run has changed a file, its mtime must not be older than the present run. Otherwise, its mtime
        must be the same as in the reference.
        """
        odd = []
        for name, entry in self.entries.items():
            wanted = due.entries.get(name)
            if wanted is None:
                continue
            is_kept = wanted["mtime"] < due_begin
            if (entry["mtime"] != wanted["mtime"]) if is_kept else entry["mtime"] < begin:
                odd.append(name)
        return odd


def names_under(root):
    """Returns all names below a directory, relative to the directory. The directory itself is `.`."""
    found = ["."]
    for place, folders, files in os.walk(root):
        found += [os.path.relpath(os.path.join(place, name), root) for name in folders + files]
    return found


def matches(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def digest(path):
    """Returns the SHA-256 of a file."""
    sum_ = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            sum_.update(block)
    return sum_.hexdigest()
