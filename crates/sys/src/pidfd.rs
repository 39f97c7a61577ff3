//! Handles on processes (pidfds), and duplicates of the descriptors of processes.
//!
//! Owns: pidfd_open(2), pidfd_getfd(2), the request PIDFD_GET_INFO.
//! Invariants: returned descriptors are owned and close-on-exec.
//! Does not: find out what a duplicated descriptor refers to.
//!
//! Man page: pidfd_open(2), pidfd_getfd(2)
//! Since: Linux 5.6, 6.9 (PIDFD_THREAD)
//! Probe: `features::REGISTRY` entry "pidfd"
//! Fallback: none; `undying doctor` refuses older kernels. Without PIDFD_THREAD, a pidfd of the thread's
//! process

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use model::{Fd, Pid, Tid};

use crate::error::{Errno, Error, Result, owned};

/// Opens a pidfd of a process. The pidfd never refers to a later process with the same pid.
pub fn open(pid: Pid) -> Result<OwnedFd> {
    // SAFETY: pidfd_open takes plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.get(), 0) };
    // SAFETY: the kernel returned a new descriptor without another owner.
    unsafe { owned(result) }.map_err(|errno| Error::process("open a handle", pid, errno))
}

/// PIDFD_THREAD: the pidfd refers to one thread.
const PIDFD_THREAD: i32 = libc::O_EXCL;

/// Opens a pidfd of a thread, for `duplicate` from the descriptor table of the thread.
///
/// Before Linux 6.9, the pidfd refers to the process of the thread, and `duplicate` uses the descriptor table
/// of the thread group leader. The thread has the same table unless it has left it with unshare(2).
pub fn open_thread(tid: Tid) -> Result<OwnedFd> {
    // SAFETY: pidfd_open takes plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, tid.get(), PIDFD_THREAD) };
    // SAFETY: the kernel returned a new descriptor without another owner.
    match unsafe { owned(result) } {
        Err(Errno::EINVAL) => open(process_of(tid)?),
        outcome => outcome.map_err(|errno| Error::thread("open a handle", tid, errno)),
    }
}

/// Returns the pid of a thread's process.
fn process_of(tid: Tid) -> Result<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"))
        .map_err(|error| Error::thread("read the status", tid, error))?;
    let number = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    number.map(Pid).ok_or_else(|| Error::thread("read the status", tid, Errno::EINVAL))
}

/// Duplicates descriptor `fd` of a process. Both descriptors share one open file description. `handle` is a
/// pidfd of the process `pid`, or of a thread of the process.
pub fn duplicate(handle: BorrowedFd<'_>, pid: Pid, fd: Fd) -> Result<OwnedFd> {
    // SAFETY: pidfd_getfd takes plain numbers. The pidfd is open for the whole call.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle.as_raw_fd(), fd.get(), 0) };
    // SAFETY: the kernel returned a new descriptor without another owner.
    unsafe { owned(result) }.map_err(|errno| Error::descriptor("duplicate", pid, fd, errno))
}

/// Size of `struct pidfd_info` as of Linux 6.13 (PIDFD_INFO_SIZE_VER0).
const INFO_BYTES: usize = 64;
/// `_IOWR(0xff, 11, struct pidfd_info)`, with the size above.
const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
/// PIDFD_INFO_EXIT: requests the exit code. In the result, the flag means that the exit code is present.
const INFO_EXIT: u64 = 1 << 3;
/// Offset of the exit code in the structure.
const EXIT_CODE_AT: usize = 60;

/// Returns the wait status of a process that has ended and was reaped. Returns `None` if the process was not
/// reaped yet, or if the kernel is older than Linux 6.15 and does not report the status.
#[must_use]
pub fn exit_code(handle: BorrowedFd<'_>) -> Option<i32> {
    let mut information = [0_u64; INFO_BYTES / 8];
    information[0] = INFO_EXIT;
    // SAFETY: the request number states a structure of INFO_BYTES bytes, which is the size of `information`.
    // The kernel writes no more bytes, and all bytes are valid numbers.
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
        // SAFETY: the call has no arguments.
        let thread = std::thread::spawn(|| unsafe { libc::gettid() });
        let ended = Tid(thread.join().unwrap());
        let (done, until) = std::sync::mpsc::channel::<()>();
        let (give, take) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: the call has no arguments.
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
