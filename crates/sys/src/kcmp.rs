//! Whether two processes share a kernel object, and a total order on such objects.
//!
//! Owns: kcmp(2).
//! Invariants: the order is the kernel's, stable while the objects live.
//! Does not: reveal addresses; the kernel scrambles them.
//!
//! Man page: kcmp(2)
//! Since: Linux 3.5 (CONFIG_KCMP)
//! Probe: `features::REGISTRY` entry "kcmp"
//! Fallback: none; without it shared descriptions cannot be told apart, and `doctor` says so

use std::cmp::Ordering;

use model::{Fd, Pid};

use crate::error::{Errno, Error, Result};

/// A kind of object that whole processes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shared {
    /// The address space.
    Memory = 1,
    /// The descriptor table.
    Files = 2,
    /// Root, working directory and umask.
    FileSystem = 3,
    /// Signal handlers.
    SignalHandlers = 4,
}

fn compare(kind: i32, first: Pid, second: Pid, left: u64, right: u64) -> Result<Ordering> {
    // SAFETY: kcmp takes plain numbers for the kinds used here.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, first.get(), second.get(), kind, left, right) };
    match result {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(Error::process("compare kernel objects", first, Errno::last())),
    }
}

/// Order of the open file descriptions behind two descriptors; equal when they are one.
pub fn compare_files(first: (Pid, Fd), second: (Pid, Fd)) -> Result<Ordering> {
    compare(0, first.0, second.0, first.1.get() as u64, second.1.get() as u64)
}

/// Order of the objects of a kind that two processes have; equal when they share one.
pub fn order(kind: Shared, first: Pid, second: Pid) -> Result<Ordering> {
    compare(kind as i32, first, second, 0, 0)
}

/// Whether two processes, or two threads by their numbers, share one object of a kind.
pub fn shared(kind: Shared, first: Pid, second: Pid) -> Result<bool> {
    Ok(order(kind, first, second)? == Ordering::Equal)
}
