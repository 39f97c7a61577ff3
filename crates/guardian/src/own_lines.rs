//! Messages of `undying` in the files that a subject and `undying` share.
//!
//! If standard error of `undying run` is a regular file, the file contains lines of the program and messages of
//! `undying`. A message that was written after the end of the program is no change by another program.
//!
//! Owns: the recognition of messages.
//! Invariants: a file is read only if its path leads, without a symbolic link, to the recorded inode.
//! Does not: write messages; the crate `cli` does.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The beginning of the first line of each message.
const MESSAGE_START: &str = "undying: ";
/// The beginnings of further lines of a message.
const FURTHER: [&[u8]; 2] = [b"help: ", b"  "];

/// Opens the file at a path, if the path leads to the file with this device and inode number.
pub(crate) fn open(path: &Path, identity: (u64, u64)) -> Option<File> {
    const READ: OFlags =
        OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
    let file = rustix::fs::open(path, READ, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    ((stat.st_dev, stat.st_ino) == identity).then(|| file.into())
}

/// Reports whether a file contains, from an offset on, at least one message and nothing else. An unreadable file
/// contains no messages.
pub(crate) fn follow(mut file: &File, offset: u64) -> bool {
    if file.seek(SeekFrom::Start(offset)).is_err() {
        return false;
    }
    let mut has_message = false;
    for line in BufReader::new(file).split(b'\n') {
        let Ok(line) = line else { return false };
        if line.starts_with(MESSAGE_START.as_bytes()) {
            has_message = true;
        } else if !has_message || !FURTHER.iter().any(|start| line.starts_with(start)) {
            return false;
        }
    }
    has_message
}

/// Reports whether the file with this path, device and inode number contains only messages from an offset on.
pub(crate) fn end(path: &Path, identity: (u64, u64), offset: u64) -> bool {
    open(path, identity).is_some_and(|file| follow(&file, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_from_lines_of_other_programs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("err");
        let follows = |text: &str| {
            std::fs::write(&path, format!("line 1\n{text}")).unwrap();
            let stat = rustix::fs::stat(&path).unwrap();
            follow(&open(&path, (stat.st_dev, stat.st_ino)).unwrap(), 7)
        };
        assert!(follows("undying: it ended\n") && follows("undying: it ended\nhelp: look\n  file\n"));
        assert!(!follows("") && !follows("other\n") && !follows("undying: it ended\nother\n"));
        assert!(!follows("help: look\n"));
        let stat = rustix::fs::stat(&path).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open(&link, (stat.st_dev, stat.st_ino)).is_none() && open(&path, (stat.st_dev, 1)).is_none());
    }
}
