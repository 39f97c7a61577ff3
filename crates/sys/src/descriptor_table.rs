//! Room in the table of this process's descriptors.
//!
//! Owns: making the table as large as it will be needed.
//! Invariants: opens nothing that stays open.
//! Does not: change a limit.
//!
//! A table that grows in a process with threads waits for a grace period of RCU, 5 to 8 ms, and so does each thread that
//! opens something meanwhile: also a tracer whose tracees are stopped.
//!
//! Man page: fcntl(2)
//! Since: Linux 2.6.24 (F_DUPFD_CLOEXEC)
//! Probe: none; every kernel has it
//! Fallback: the table grows when it must

use std::io;
use std::os::fd::AsFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Result};

/// Descriptors that a guardian of a hundred subjects has open, at 34 each; a table of so many takes 32 KiB.
const DESCRIPTORS: u64 = 4096;

/// Makes the table large enough for as many descriptors as this process may open, up to 4096. Best before the first
/// thread.
pub fn make_room() -> Result<()> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
    let (one, _other) = io::pipe().map_err(|error| Error::new("make a pipe", error))?;
    let last = i32::try_from(limit.saturating_sub(1)).unwrap_or(0);
    // Closed at once. Where the last number is in use, the table is as large already.
    match fcntl_dupfd_cloexec(one.as_fd(), last) {
        Ok(_) | Err(rustix::io::Errno::MFILE | rustix::io::Errno::INVAL) => Ok(()),
        Err(errno) => Err(Error::new("make room for descriptors", errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_large_as_the_limit_allows() {
        make_room().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
        assert!(size.trim().parse::<u64>().unwrap() >= limit, "{size}");
    }
}
