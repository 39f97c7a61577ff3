//! Open descriptors of a process.
//!
//! Owns: the count.
//! Does not: inspect what they refer to.

use std::fs;

use model::Pid;
use sys::{Error, Result};
use tracee::procfs;

/// How many descriptors a process has open. Linux 6.2 and later report it as the size of the directory; before, the
/// directory is listed.
///
/// # Errors
///
/// ENOENT if the process has ended; EACCES if it may not be traced.
pub fn open_descriptors(pid: Pid) -> Result<u32> {
    let path = format!("/proc/{pid}/fd");
    let size = fs::metadata(&path).map_err(|error| Error::path("read the size of", &path, error))?.len();
    // Zero is also the answer of a kernel that does not report it.
    let count = if size == 0 { procfs::descriptors(pid)?.len() as u64 } else { size };
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}
