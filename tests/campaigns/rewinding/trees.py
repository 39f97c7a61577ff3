"""Compares two folders byte by byte: names, types, modes, owners, content, targets, links, extended attributes.

Not compared: ctime, atime, inode numbers, and the number of links from outside of the folder. Times of modification
are counted apart, by `odd_times`.
"""
import fnmatch
import hashlib
import os
import stat

KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "fifo",
         stat.S_IFSOCK: "socket", stat.S_IFCHR: "character device", stat.S_IFBLK: "block device"}
BLOCK = 1 << 20


class Tree:
    """What a folder holds. Names that match `ignored` are left out; of those that match `loose`, bytes and size."""

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
        """What differs from the tree that is due, a line each."""
        lines = ["%s is missing" % name for name in sorted(due.entries.keys() - self.entries.keys())]
        for name, entry in sorted(self.entries.items()):
            if name not in due.entries:
                lines.append("%s is one too many (%s, %s bytes)" % (name, entry["type"], entry.get("size", "no")))
                continue
            wanted = due.entries[name]
            differing = [key for key in wanted.keys() | entry.keys() if key != "mtime" and wanted.get(key) != entry.get(key)]
            if "content" in differing:
                lines.append("%s: %s" % (name, self.first_byte(name, due)))
            lines += ["%s: %s is %s instead of %s" % (name, key, entry.get(key), wanted.get(key))
                      for key in sorted(differing) if key not in ("content", "size")]
        return lines

    def first_byte(self, name, due):
        """Where the content begins to differ."""
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
                    return "content differed when it was read first, %s" % sizes

    def odd_times(self, due, begin, due_begin):
        """Names whose mtime is older than the run where the reference has a newer one, or differs where it has an older."""
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
    """Every name below a folder, relative to it; the folder itself as `.`."""
    found = ["."]
    for place, folders, files in os.walk(root):
        found += [os.path.relpath(os.path.join(place, name), root) for name in folders + files]
    return found


def matches(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def digest(path):
    """The SHA-256 of a file."""
    sum_ = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            sum_.update(block)
    return sum_.hexdigest()
