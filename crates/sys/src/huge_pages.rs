//! Transparent huge pages: the system-wide setting, and requests to build them.
//!
//! Owns: the setting; MADV_COLLAPSE for other processes.
//! Invariants: a request changes no content.
//! Does not: know whether a program has asked for huge pages.
//!
//! Man page: madvise(2), process_madvise(2)
//! Since: Linux 2.6.38, 6.1 (MADV_COLLAPSE)
//! Probe: none needed; a kernel without the file has no transparent huge pages, and requests report errors
//! Fallback: none needed

use std::os::fd::{AsRawFd, BorrowedFd};

use model::AddressRange;

use crate::error::Errno;

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Reports whether the system-wide setting is `always`. With this setting, the first write to an address in a
/// large mapping can allocate a huge page. The program does not have to ask for huge pages.
#[must_use]
pub fn are_always_enabled() -> bool {
    std::fs::read_to_string(ENABLED).is_ok_and(|choices| choices.contains("[always]"))
}

/// Reports whether the kernel has transparent huge pages, and programs may use them.
#[must_use]
pub fn are_supported() -> bool {
    std::fs::read_to_string(ENABLED).is_ok_and(|choices| !choices.contains("[never]"))
}

/// MADV_COLLAPSE: builds huge pages of the pages in a range.
const MADV_COLLAPSE: i32 = 25;

/// Replaces the small pages of a range by huge pages. `process` is a pidfd. The kernel copies the pages, which takes 0.3 to
/// 10 ms for each huge page, and locks the mappings of the process meanwhile.
///
/// # Errors
///
/// - EPERM: this process has no CAP_SYS_NICE, or may not read the memory of the process.
/// - ESRCH: the process has ended.
/// - ENOMEM: nothing is mapped in the range, or no huge page is free.
/// - EINVAL, EAGAIN, EBUSY: the range contains missing, protected or pinned pages, or no whole huge page.
pub fn build(process: BorrowedFd<'_>, range: AddressRange) -> std::result::Result<(), Errno> {
    let vector =
        libc::iovec { iov_base: range.start.get() as *mut libc::c_void, iov_len: range.len().get() as usize };
    // SAFETY: the vector is valid during the call. The kernel uses the addresses in the other process, and changes no
    // content there.
    let result = unsafe {
        libc::syscall(libc::SYS_process_madvise, process.as_raw_fd(), &raw const vector, 1, MADV_COLLAPSE, 0)
    };
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}
