//! The open descriptors of a process.
//!
//! Owns: the number of open descriptors.
//! Does not: inspect the objects behind the descriptors.

use std::fs;

use model::Pid;
use sys::{Error, Result};
use tracee::procfs;

/// Returns the number of open descriptors of a process. Linux 6.2 and later report the number as the size of
/// `/proc/PID/fd`. On earlier kernels, the directory is listed.
///
/// # Errors
///
/// ENOENT if the process has ended. EACCES if this process may not trace the other process.
pub fn open_descriptors(pid: Pid) -> Result<u32> {
    let path = format!("/proc/{pid}/fd");
    let size = fs::metadata(&path).map_err(|error| Error::path("read the size of", &path, error))?.len();
    // A kernel that does not report the number reports the size zero.
    let count = if size == 0 { procfs::descriptors(pid)?.len() as u64 } else { size };
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}
