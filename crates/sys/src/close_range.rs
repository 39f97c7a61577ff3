//! Marks a range of descriptors close-on-exec.
//!
//! Owns: close_range(2) with CLOSE_RANGE_CLOEXEC.
//! Invariants: closes no descriptor.
//! Does not: choose the range. Tests use this module to hide inherited descriptors from their subjects (protected
//! programs).
//!
//! Man page: close_range(2)
//! Since: Linux 5.11
//! Probe: none; `undying doctor` refuses older kernels
//! Fallback: none; the caller gets the error

use model::Fd;

use crate::error::{Result, done};

/// Marks descriptor `first` of this process and all higher descriptors close-on-exec.
pub fn close_on_exec_from(first: Fd) -> Result<()> {
    // SAFETY: close_range takes plain numbers. With this flag, the call closes no descriptor.
    let result = unsafe {
        libc::syscall(libc::SYS_close_range, first.get(), libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    done("mark descriptors close-on-exec", result).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

    use super::*;

    #[test]
    fn a_descriptor_is_marked_and_stays_open() {
        let file = std::fs::File::open("/dev/null").unwrap();
        fcntl_setfd(&file, FdFlags::empty()).unwrap();
        close_on_exec_from(Fd(file.as_raw_fd())).unwrap();
        assert_eq!(fcntl_getfd(&file).unwrap(), FdFlags::CLOEXEC);
    }
}
