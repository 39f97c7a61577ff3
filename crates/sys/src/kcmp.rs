//! Compares kernel objects of processes: whether two processes share an object, and a total order of such
//! objects.
//!
//! Owns: kcmp(2).
//! Invariants: the order is the order of the kernel. It does not change while the objects exist.
//! Does not: reveal the addresses of the objects. The kernel obfuscates them.
//!
//! Man page: kcmp(2)
//! Since: Linux 3.5 (CONFIG_KCMP)
//! Probe: `features::REGISTRY` entry "kcmp"
//! Fallback: none. Without kcmp(2), a shared open file description cannot be distinguished from two separate
//! ones; `undying doctor` reports this

use std::cmp::Ordering;

use model::{Fd, Pid};

use crate::error::{Errno, Error, Result};

/// A kind of kernel object that processes or threads can share as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shared {
    /// The address space.
    Memory = 1,
    /// The file descriptor table.
    Files = 2,
    /// The root directory, the working directory and the umask.
    FileSystem = 3,
    /// The table of signal handlers.
    SignalHandlers = 4,
}

fn compare(kind: i32, first: Pid, second: Pid, left: u64, right: u64) -> Result<Ordering> {
    // SAFETY: for the kinds that are used here, kcmp takes plain numbers and no pointer.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, first.get(), second.get(), kind, left, right) };
    ordering(result).map_err(|errno| Error::process("compare kernel objects", first, errno))
}

/// Converts the result of kcmp(2).
pub(crate) fn ordering(result: libc::c_long) -> std::result::Result<Ordering, Errno> {
    match result {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(Errno::last()),
    }
}

/// Returns the order of the open file descriptions of two descriptors. `Equal` means that both descriptors
/// refer to the same open file description.
pub fn compare_files(first: (Pid, Fd), second: (Pid, Fd)) -> Result<Ordering> {
    compare(0, first.0, second.0, first.1.get() as u64, second.1.get() as u64)
}

/// Returns the order of two processes' objects of a kind. `Equal` means that both processes share one object.
pub fn order(kind: Shared, first: Pid, second: Pid) -> Result<Ordering> {
    compare(kind as i32, first, second, 0, 0)
}

/// Reports whether two processes share one object of a kind. `first` and `second` can also be tids.
pub fn shared(kind: Shared, first: Pid, second: Pid) -> Result<bool> {
    Ok(order(kind, first, second)? == Ordering::Equal)
}
