//! Creates pidfds of a process that has ended and was reaped.
//!
//! Owns: the creation of these pidfds, for a restored program that held pidfds of an ended process.
//! Invariants: the process that is created for the pidfds only exits, and is reaped here.
//! Does not: restore the exit status of the original process; the kernel no longer has the exit status.
//!
//! Man page: clone3(2), pidfd_open(2)
//! Since: Linux 5.3
//! Probe: none; `undying doctor` refuses older kernels
//! Fallback: none

use std::os::fd::{FromRawFd, OwnedFd};

use crate::clone::{self, CloneArguments};
use crate::error::{Error, Result};

/// Returns pidfds of one process that has ended and was reaped.
pub fn handles(count: usize) -> Result<Vec<OwnedFd>> {
    let mut handle = -1_i32;
    let arguments = CloneArguments {
        flags: libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut handle) as u64,
        ..CloneArguments::default()
    };
    // SAFETY: the kernel writes one int to `handle`. The child only exits.
    let child = unsafe { clone::create(&arguments, || ()) };
    let pid = child.map_err(|errno| Error::new("make a handle on an ended process", errno))?;
    // SAFETY: clone3 succeeded, so `handle` is a new descriptor without another owner.
    let handle = unsafe { OwnedFd::from_raw_fd(handle) };
    // Pidfds can be opened only before the process is reaped.
    let more: Result<Vec<OwnedFd>> = (1..count).map(|_| crate::pidfd::open(pid)).collect();
    clone::reap(pid)?;
    let mut all = more?;
    all.push(handle);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    #[test]
    fn the_process_is_gone() {
        let handles = super::handles(2).unwrap();
        assert_eq!(handles.len(), 2);
        for handle in handles {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd())).unwrap();
            assert!(info.contains("Pid:\t-1"), "{info}");
        }
    }
}
