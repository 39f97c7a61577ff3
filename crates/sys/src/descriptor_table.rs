//! Enlarges the descriptor table of this process in advance.
//!
//! Owns: growing the table to the size that this process will need.
//! Invariants: no additional descriptor stays open.
//! Does not: change a resource limit.
//!
//! When the table of a process with several threads grows, the kernel waits 5 to 8 ms for a grace period of RCU.
//! Each thread that opens a descriptor meanwhile also waits, even a tracer whose tracees are stopped.
//!
//! Man page: fcntl(2)
//! Since: Linux 2.6.24 (F_DUPFD_CLOEXEC)
//! Probe: none; every kernel has it
//! Fallback: the table grows on demand

use std::io;
use std::os::fd::AsFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Result};

/// Number of descriptors of a guardian (a supervising process) with a hundred subjects (protected programs), at 34
/// descriptors each. A table of this size takes 32 KiB.
const DESCRIPTORS: u64 = 4096;

/// Enlarges the table to the number of descriptors that this process may open, but at most to 4096. It is best to
/// call this function before the first thread starts.
pub fn enlarge() -> Result<()> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
    let (one, _other) = io::pipe().map_err(|error| Error::new("make a pipe", error))?;
    let last = i32::try_from(limit.saturating_sub(1)).unwrap_or(0);
    // The descriptor is closed at once. If the number `last` is in use, the table is already large enough.
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
        enlarge().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
        assert!(size.trim().parse::<u64>().unwrap() >= limit, "{size}");
    }
}
