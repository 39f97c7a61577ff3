//! What `/proc` tells of a process.
//!
//! Owns: parsers of stat, status, maps and smaps, fdinfo, children.
//! Invariants: a file that cannot be understood is an error that names it, never a guess.
//! Does not: stop anything; values may be stale once returned.

mod ahead;
mod areas;
mod descriptors;
mod kept;
mod stat;
mod status;

use std::fs;
use std::io::Read as _;
use std::path::Path;

use model::{PageCount, Pid, Tid};
use sys::{Errno, Error, Result};

pub use ahead::ReadAhead;
pub use areas::{Area, AreaFlags, Backing, Protection, areas, areas_in, areas_with_flags};
pub use descriptors::{DescriptorInfo, closes_on_exec, descriptor_info, descriptors, open_descriptor_info};
pub use kept::{KeptFiles, read_whole};
pub use stat::{Stat, key, stat, thread_count, thread_stat};
pub use status::{CallStatus, Status, call_status, signal_set, status, status_line, thread_status};

/// Reads a small file of `/proc` whole.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let fail = |error| Error::path("read", path.as_ref(), error);
    let mut file = fs::File::open(path.as_ref()).map_err(fail)?;
    // These files say that they are empty: `fs::read` would begin with 32 bytes and double.
    let mut bytes = vec![0; FIRST_READ_BYTES];
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

/// A page: what the kernel produces at a time, and more than most of these files hold.
const FIRST_READ_BYTES: usize = 4096;

/// Reads a small text file of `/proc` whole; bytes that are not UTF-8 are replaced.
pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    Ok(String::from_utf8_lossy(&read(path)?).into_owned())
}

/// Files that only directories of processes have; a thread's number leads to such a directory as well.
const NOT_IN_TASKS: [&str; 3] = ["timers", "timerslack_ns", "coredump_filter"];

/// `/proc/PID/task/TID/NAME`, or `/proc/TID/NAME` where only that is there.
#[must_use]
pub fn path_of_thread(pid: Pid, tid: Tid, name: &str) -> String {
    match NOT_IN_TASKS.contains(&name) {
        true => format!("/proc/{tid}/{name}"),
        false => format!("/proc/{pid}/task/{tid}/{name}"),
    }
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

/// Pages in memory that a process shares with no file, by the kernel's quick count.
pub fn own_pages(pid: Pid) -> Result<PageCount> {
    let path = format!("/proc/{pid}/statm");
    let text = read_text(&path)?;
    let word = |index: usize| text.split(' ').nth(index)?.parse::<u64>().ok();
    match (word(1), word(2)) {
        (Some(resident), Some(shared)) => Ok(PageCount(resident.saturating_sub(shared))),
        _ => Err(malformed(&path)),
    }
}

/// The target of a symbolic link of `/proc`.
pub fn link(path: impl AsRef<Path>) -> Result<std::path::PathBuf> {
    fs::read_link(path.as_ref()).map_err(|error| Error::path("read the link", path, error))
}

pub(crate) fn numbers(directory: &str) -> Result<Vec<i32>> {
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

pub(crate) fn malformed(path: &str) -> Error {
    Error::path("understand", path, Errno::EINVAL)
}
