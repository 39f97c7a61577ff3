//! The descriptor table of this process: its size, and the limit on descriptors.
//!
//! Owns: growing the table to the size that this process will need; RLIMIT_NOFILE of this process after
//! [`raise_limit`].
//! Invariants: no additional descriptor stays open. Programs that are started with [`start_with_first_limit`]
//! inherit the limit that this process had at its start.
//! Does not: set the limits of a subject; the state kind `limits` of the crate `resource` does.
//!
//! When the table of a process with several threads grows, the kernel waits 5 to 8 ms for a grace period of RCU.
//! Each thread that opens a descriptor meanwhile also waits, even a tracer whose tracees are stopped.
//!
//! Man page: fcntl(2), setrlimit(2)
//! Since: Linux 2.6.24 (F_DUPFD_CLOEXEC)
//! Probe: none; every kernel has it
//! Fallback: the table grows on demand

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Error, Result};

/// Number of descriptors of a guardian with a hundred subjects (protected programs), at 34 descriptors each. A table of
/// this size takes 32 KiB.
const DESCRIPTORS: u64 = 4096;

/// The limit before [`raise_limit`].
static FIRST_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Returns how many descriptors this process may have.
#[must_use]
pub fn limit() -> usize {
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Raises the soft limit on descriptors to the hard limit. If setrlimit(2) fails, the limit stays low.
pub fn raise_limit() {
    let first = *FIRST_LIMIT.get_or_init(|| getrlimit(Resource::Nofile));
    if first.current != first.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: first.maximum, maximum: first.maximum });
    }
}

/// Makes the program of a command start with the limit that this process had before [`raise_limit`].
pub fn start_with_first_limit(command: &mut Command) -> &mut Command {
    let Some(first) = FIRST_LIMIT.get().copied() else { return command };
    // SAFETY: between fork and exec, the closure makes one system call. The closure takes no lock, and allocates
    // nothing.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, first)?)) }
}

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
    fn a_program_starts_with_the_limit_before_the_raise() {
        let shown = |command: &mut Command| {
            let output = command.args(["-c", "ulimit -Sn"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let before = shown(&mut Command::new("sh"));
        raise_limit();
        assert_eq!(shown(start_with_first_limit(&mut Command::new("sh"))), before);
        let hard = getrlimit(Resource::Nofile).maximum;
        assert_eq!(limit() as u64, hard.unwrap_or(u64::MAX));
    }

    #[test]
    fn the_table_is_as_large_as_the_limit_allows() {
        enlarge().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
        assert!(size.trim().parse::<u64>().unwrap() >= limit, "{size}");
    }
}
