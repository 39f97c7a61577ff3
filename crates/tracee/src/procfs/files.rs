//! Reading files, links and directories of `/proc`; which processes and threads there are.
//!
//! Owns: how a file is read whole, whose length the kernel does not tell; the paths of threads; the lists of tasks.
//! Does not: parse anything else; stop them: a list may be out of date once returned.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use model::{Pid, Tid};
use sys::{Errno, Error, Result};

/// A page: what the kernel produces at a time, and more than most of these files hold.
pub(super) const ROOM: usize = 4096;

/// Files that only directories of processes have; a thread's number leads to such a directory as well.
const NOT_IN_TASKS: [&str; 3] = ["timers", "timerslack_ns", "coredump_filter"];

/// Reads a small file of `/proc` whole.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let fail = |error| Error::path("read", path.as_ref(), error);
    let mut file = File::open(path.as_ref()).map_err(fail)?;
    // These files say that they are empty: `fs::read` would begin with 32 bytes and double.
    let mut bytes = vec![0; ROOM];
    let mut filled = 0;
    loop {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(fail(error)),
        }
        if filled == bytes.len() {
            bytes.resize(2 * filled, 0);
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Reads a file of `/proc` from its beginning into memory that is kept. Not for files with paths in them: a read ends
/// before a record that no longer fits a page, so that one of less than half a page is the end only where records are
/// short.
pub fn read_whole(file: &File, bytes: &mut Vec<u8>) -> std::result::Result<(), Errno> {
    bytes.resize(bytes.capacity().max(ROOM), 0);
    let mut filled = 0;
    loop {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if filled == bytes.len() {
            bytes.resize(2 * filled, 0);
        } else if filled < ROOM / 2 {
            break;
        }
    }
    bytes.truncate(filled);
    Ok(())
}

/// Reads a small text file of `/proc` whole; bytes that are not UTF-8 are replaced.
pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    Ok(String::from_utf8_lossy(&read(path)?).into_owned())
}

/// `/proc/PID/task/TID/NAME`, or `/proc/TID/NAME` where only that is there.
#[must_use]
pub fn path_of_thread(pid: Pid, tid: Tid, name: &str) -> String {
    match NOT_IN_TASKS.contains(&name) {
        true => format!("/proc/{tid}/{name}"),
        false => format!("/proc/{pid}/task/{tid}/{name}"),
    }
}

/// The target of a symbolic link of `/proc`.
pub fn link(path: impl AsRef<Path>) -> Result<PathBuf> {
    fs::read_link(path.as_ref()).map_err(|error| Error::path("read the link", path, error))
}

pub(super) fn numbers(directory: &str) -> Result<Vec<i32>> {
    let entries = fs::read_dir(directory).map_err(|error| Error::path("list", directory, error))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::path("list", directory, error))?;
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push(number);
        }
    }
    Ok(found)
}

/// All processes that this one may see.
pub fn processes() -> Result<Vec<Pid>> {
    Ok(numbers("/proc")?.into_iter().map(Pid).collect())
}

/// Threads of a process, leader first.
pub fn threads(pid: Pid) -> Result<Vec<Tid>> {
    let mut found = numbers(&format!("/proc/{pid}/task"))?.into_iter().map(Tid).collect::<Vec<_>>();
    found.sort_by_key(|tid| (tid.get() != pid.get(), tid.get()));
    Ok(found)
}

/// Children of a process, whichever of its threads made them.
pub fn children(pid: Pid) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for tid in threads(pid)? {
        let path = format!("/proc/{pid}/task/{tid}/children");
        match read_text(&path) {
            Ok(text) => found.extend(text.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid)),
            Err(error) if error.errno == Errno::ENOENT || error.errno == Errno::ESRCH => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// What a text file says.
pub(super) fn parsed<T>(path: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T> {
    parse(&read_text(path)?).ok_or_else(|| malformed(path))
}

pub(super) fn malformed(path: &str) -> Error {
    Error::path("understand", path, Errno::EINVAL)
}
