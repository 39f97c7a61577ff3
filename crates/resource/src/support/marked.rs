//! Watched files as fdinfo describes them: inotify(7) and fanotify(7).
//!
//! Owns: the values of a line, finding a file by its file handle, and the mounts of a file system.
//! Invariants: a found file has the recorded inode, and has a name.
//! Does not: add watches or marks.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{fstat, makedev};
use sys::file_handle::{self, FileHandle};

/// Returns the value of `name` in a line of the form `inotify wd:3 ino:9e7e sdev:800013 …`.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix(':'))
}

/// Returns a hexadecimal value of a line.
pub(crate) fn number(line: &str, name: &str) -> Option<u64> {
    u64::from_str_radix(value(line, name)?, 16).ok()
}

/// Returns the device of a line. The kernel prints its internal device number: 12 bits major, 20 bits minor.
pub(crate) fn device(line: &str) -> Option<u64> {
    let device = number(line, "sdev")?;
    Some(makedev((device >> 20) as u32, (device & 0xf_ffff) as u32))
}

/// Returns the file handle of a line. The handle is empty if the file system has no handles.
pub(crate) fn handle(line: &str) -> Option<FileHandle> {
    let digits = value(line, "f_handle").unwrap_or_default();
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    Some(FileHandle {
        kind: number(line, "fhandle-type").map_or(-1, |kind| kind as i32),
        bytes: (0..digits.len() / 2).map(|index| byte(2 * index)).collect::<Option<_>>()?,
    })
}

/// Finds a file by its handle. Returns `None` if the file has no name, or if no mount leads to it.
pub(crate) fn find(device: u64, inode: u64, handle: &FileHandle) -> Option<OwnedFd> {
    mounts(device).into_iter().find_map(|mount| {
        let mount = File::open(&mount).ok()?;
        let file = file_handle::open(mount.as_fd(), handle).ok()?;
        fstat(&file).is_ok_and(|stat| stat.st_ino == inode && stat.st_nlink > 0).then_some(file)
    })
}

/// Returns the mount points of a file system.
pub(crate) fn mounts(device: u64) -> Vec<PathBuf> {
    mount_table().into_iter().filter(|mount| mount.device == device).map(|mount| mount.place).collect()
}

/// Returns the device and the mount point of the mount with an id.
pub(crate) fn mount_with_id(id: u64) -> Option<(u64, PathBuf)> {
    let found = mount_table().into_iter().find(|mount| mount.id == id)?;
    Some((found.device, found.place))
}

/// One line of mountinfo.
struct Mount {
    id: u64,
    device: u64,
    place: PathBuf,
}

fn mount_table() -> Vec<Mount> {
    let text = tracee::procfs::read_text("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(read_mount).collect()
}

/// Parses a line of mountinfo: id, id of the parent, device, root, mount point.
fn read_mount(line: &str) -> Option<Mount> {
    let mut words = line.split(' ');
    let id = words.next()?.parse().ok()?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    let device = makedev(major.parse().ok()?, minor.parse().ok()?);
    Some(Mount { id, device, place: unescape(words.nth(1)?) })
}

/// Decodes octal escapes of mountinfo, such as `\040` for a space.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let code = others.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_parsed() {
        let line = "31 24 253:1 / /a\\040b rw,relatime shared:1 - ext4 /dev/vda rw";
        let mount = read_mount(line).unwrap();
        assert_eq!((mount.id, mount.device), (31, makedev(253, 1)));
        assert_eq!(mount.place, Path::new("/a b"));
        assert!(read_mount("31 24").is_none());
    }

    #[test]
    fn mount_points_with_spaces_are_decoded() {
        assert_eq!(unescape("/a\\040b\\134"), Path::new("/a b\\"));
        assert_eq!(unescape("/plain"), Path::new("/plain"));
    }

    #[test]
    fn a_line_of_fdinfo_is_parsed() {
        let line = "inotify wd:3 ino:9e7e sdev:800013 fhandle-bytes:2 fhandle-type:1 f_handle:7e9e";
        assert_eq!((number(line, "wd"), number(line, "mask")), (Some(3), None));
        assert_eq!(device(line), Some(makedev(8, 19)));
        assert_eq!(handle(line), Some(FileHandle { kind: 1, bytes: vec![0x7e, 0x9e] }));
        assert_eq!(handle("inotify wd:3").map(|handle| handle.kind), Some(-1));
    }
}
