//! Sets the number of unread expirations of a timerfd.
//!
//! Owns: the request TFD_IOC_SET_TICKS.
//! Invariants: none.
//! Does not: create or arm timers; `rustix` does.
//!
//! Man page: timerfd_create(2), section "ioctl(2)"
//! Since: Linux 3.17 (CONFIG_CHECKPOINT_RESTORE)
//! Probe: none; the request itself fails with ENOTTY
//! Fallback: none; the restore reports the failure

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Result, done};

/// _IOW('T', 0, u64)
const TFD_IOC_SET_TICKS: libc::c_ulong = 0x4008_5400;

/// Sets the number of expirations that the next read returns. The kernel refuses zero.
pub fn set_expirations(timer: BorrowedFd<'_>, expirations: u64) -> Result<()> {
    // SAFETY: the kernel reads one u64 at the address given, which outlives the call.
    let result = unsafe { libc::ioctl(timer.as_raw_fd(), TFD_IOC_SET_TICKS, &raw const expirations) };
    done("set the expirations of a timerfd", result).map(drop)
}
