//! Chooses the watch descriptors (the numbers of watches) of an inotify instance.
//!
//! Owns: the request INOTIFY_IOC_SETNEXTWD.
//! Invariants: none beyond the kernel's.
//! Does not: create instances or watches; rustix does.
//!
//! Man page: inotify(7)
//! Since: Linux 4.16 (CONFIG_CHECKPOINT_RESTORE)
//! Probe: none; without support, the request fails with ENOTTY
//! Fallback: none; the restore reports the error

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Result, done};

/// `_IOW('I', 0, i32)`.
const INOTIFY_IOC_SETNEXTWD: libc::c_ulong = 0x4004_4900;

/// Sets the watch descriptor that the next new watch gets.
pub fn set_next_watch(instance: BorrowedFd<'_>, watch: i32) -> Result<()> {
    // SAFETY: the request takes its argument by value.
    let result = unsafe {
        libc::ioctl(instance.as_raw_fd(), INOTIFY_IOC_SETNEXTWD, libc::c_ulong::from(watch as u32))
    };
    done("set the next watch number of an inotify instance", result).map(drop)
}
