//! Handles on processes, and duplicates of their descriptors.
//!
//! Owns: pidfd_open(2), pidfd_getfd(2), the request PIDFD_GET_INFO.
//! Invariants: returned descriptors are owned and close-on-exec.
//! Does not: tell what a duplicated descriptor refers to.
//!
//! Man page: pidfd_open(2), pidfd_getfd(2)
//! Since: Linux 5.6, 6.9 (PIDFD_THREAD)
//! Probe: `features::REGISTRY` entry "pidfd"
//! Fallback: none; older kernels are refused by `doctor`. Without PIDFD_THREAD, a handle on the process of the thread

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use model::{Fd, Pid, Tid};

use crate::error::{Errno, Error, Result};

/// A handle on a process that can never mean a later one with the same number.
pub fn open(pid: Pid) -> Result<OwnedFd> {
    // SAFETY: pidfd_open takes plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.get(), 0) };
    if result < 0 {
        return Err(Error::process("open a handle", pid, Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// PIDFD_THREAD: the handle is on one thread.
const PIDFD_THREAD: i32 = libc::O_EXCL;

/// A handle on a thread, for `duplicate` from its descriptor table. Before Linux 6.9 it is one on the process of the
/// thread, whose leader has the same table unless the thread has left it.
pub fn open_thread(tid: Tid) -> Result<OwnedFd> {
    // SAFETY: pidfd_open takes plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, tid.get(), PIDFD_THREAD) };
    if result >= 0 {
        // SAFETY: the kernel returned a new descriptor without another owner.
        return Ok(unsafe { OwnedFd::from_raw_fd(result as i32) });
    }
    match Errno::last() {
        Errno::EINVAL => open(process_of(tid)?),
        errno => Err(Error::thread("open a handle", tid, errno)),
    }
}

/// The process of a thread.
fn process_of(tid: Tid) -> Result<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"))
        .map_err(|error| Error::thread("read the status", tid, error))?;
    let number = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    number.map(Pid).ok_or_else(|| Error::thread("read the status", tid, Errno::EINVAL))
}

/// A duplicate of descriptor `fd` of the process; both share one open file description.
pub fn duplicate(handle: BorrowedFd<'_>, pid: Pid, fd: Fd) -> Result<OwnedFd> {
    // SAFETY: pidfd_getfd takes plain numbers; the handle is open for the whole call.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle.as_raw_fd(), fd.get(), 0) };
    if result < 0 {
        return Err(Error::descriptor("duplicate", pid, fd, Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// Size of `struct pidfd_info` as of Linux 6.13 (PIDFD_INFO_SIZE_VER0).
const INFO_BYTES: usize = 64;
/// _IOWR(0xff, 11, struct pidfd_info) of that size.
const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
/// Ask for the exit code, and whether it was given.
const INFO_EXIT: u64 = 1 << 3;
/// Where the exit code stands in the structure.
const EXIT_CODE_AT: usize = 60;

/// The wait status of a process that has ended and was reaped; `None` where the kernel does not tell
/// (it does since Linux 6.15) or the process still waits to be reaped.
#[must_use]
pub fn exit_code(handle: BorrowedFd<'_>) -> Option<i32> {
    let mut information = [0_u64; INFO_BYTES / 8];
    information[0] = INFO_EXIT;
    // SAFETY: the request number says that the structure has INFO_BYTES bytes, which `information` has; the
    // kernel writes no more, and any bytes are valid numbers.
    let result = unsafe { libc::ioctl(handle.as_raw_fd(), PIDFD_GET_INFO, information.as_mut_ptr()) };
    let known = result == 0 && information[0] & INFO_EXIT != 0;
    known.then(|| (information[EXIT_CODE_AT / 8] >> 32) as i32)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_of_a_thread_are_those_of_its_process() {
        let (own, file) = (Pid(std::process::id() as i32), std::fs::File::open("/dev/null").unwrap());
        // SAFETY: no arguments.
        let thread = std::thread::spawn(|| unsafe { libc::gettid() });
        let ended = Tid(thread.join().unwrap());
        let (done, until) = std::sync::mpsc::channel::<()>();
        let (give, take) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: no arguments.
            give.send(unsafe { libc::gettid() }).unwrap();
            until.recv().unwrap_err();
        });
        let tid = Tid(take.recv().unwrap());
        for handle in [open_thread(tid), process_of(tid).and_then(open)] {
            let number = Fd(file.as_raw_fd());
            assert!(duplicate(handle.unwrap().as_fd(), own, number).is_ok());
        }
        drop(done);
        thread.join().unwrap();
        assert!(open_thread(ended).is_err());
    }
}
