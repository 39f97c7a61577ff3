//! Handles on a process that has ended and was reaped.
//!
//! Owns: making them, for a program that held such handles.
//! Invariants: the process made for it runs no code but its end, and is reaped here.
//! Does not: bring back how the original process ended; the kernel has forgotten.
//!
//! Man page: clone3(2), pidfd_open(2)
//! Since: Linux 5.3
//! Probe: none; older kernels are refused by `doctor`
//! Fallback: none

use std::mem::size_of;
use std::os::fd::{FromRawFd, OwnedFd};

use model::Pid;

use crate::clone::{self, CloneArguments};
use crate::error::{Errno, Error, Result};

const NAME: &str = "make a handle on an ended process";

/// Handles on one process that is no more.
pub fn handles(count: usize) -> Result<Vec<OwnedFd>> {
    let mut handle = -1_i32;
    let arguments = CloneArguments {
        flags: libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut handle) as u64,
        ..CloneArguments::default()
    };
    // SAFETY: the kernel writes one int to `handle`. Without CLONE_VM the child gets a copy of this address space,
    // and all it does is to end.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
    if child == 0 {
        // SAFETY: ends this process of our own at once.
        unsafe { libc::_exit(0) };
    }
    if child < 0 {
        return Err(Error::new(NAME, Errno::last()));
    }
    // SAFETY: clone3 succeeded, so `handle` is a new descriptor without another owner.
    let handle = unsafe { OwnedFd::from_raw_fd(handle) };
    let pid = Pid(child as i32);
    // Until it is reaped more handles can be had.
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
