//! Finds the robust futex list of another thread.
//!
//! Owns: get_robust_list(2).
//! Invariants: nothing in the thread is changed.
//! Does not: read the entries of the list.
//!
//! Man page: get_robust_list(2)
//! Since: Linux 2.6.17
//! Probe: none needed
//! Fallback: none needed

use model::{Address, ByteCount, Tid};

use crate::error::{Errno, Error, Result};

/// Reads the address of the list head of a thread, and the length that was registered with the head.
pub fn get(tid: Tid) -> Result<(Address, ByteCount)> {
    let mut head = 0_u64;
    let mut length = 0_u64;
    // SAFETY: the kernel writes one word to each of two live, exclusively borrowed words.
    let result =
        unsafe { libc::syscall(libc::SYS_get_robust_list, tid.get(), &raw mut head, &raw mut length) };
    if result == 0 {
        Ok((Address(head), ByteCount(length)))
    } else {
        Err(Error::thread("read the robust list", tid, Errno::last()))
    }
}
