//! Takes locks and leases on files, and builds the arguments with which another process takes a lock or a
//! lease.
//!
//! Owns: `struct flock` and the commands of fcntl(2) that take this structure, F_SETLEASE, and the operations
//! of flock(2).
//! Invariants: the start of a range is counted from the beginning of the file. No operation of this module
//! waits for a lock.
//! Does not: list existing locks; `/proc` shows them.
//!
//! Man page: F_OFD_SETLK(2const), F_SETLEASE(2const), flock(2)
//! Since: Linux 3.15
//! Probe: none needed
//! Fallback: none needed

use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::FlockOperation;

use crate::error::{Errno, Error, Result, done};

/// F_SETLK: the fcntl(2) command that takes a record lock. The process owns this lock.
pub const SET_RECORD_LOCK_COMMAND: u64 = 6;
/// F_OFD_SETLK: the fcntl(2) command that takes an open file description lock.
pub const SET_DESCRIPTION_LOCK_COMMAND: u64 = 37;
/// F_SETLEASE: the fcntl(2) command that takes a lease. [`lease_argument`] returns the argument of this
/// command.
pub const SET_LEASE_COMMAND: u64 = 1024;

const READS: i16 = 0;
const WRITES: i16 = 1;
const LOCK_SHARED: u64 = 1;
const LOCK_EXCLUSIVE: u64 = 2;
const LOCK_NO_WAIT: u64 = 4;

#[repr(C)]
struct RawLock {
    access: i16,
    /// Always 0 (SEEK_SET): `start` is counted from the beginning of the file.
    whence: i16,
    start: i64,
    length: i64,
    pid: i32,
}

const _: () = assert!(size_of::<RawLock>() == 32);
const _: () = assert!(offset_of!(RawLock, whence) == 2);
const _: () = assert!(offset_of!(RawLock, start) == 8);
const _: () = assert!(offset_of!(RawLock, length) == 16);
const _: () = assert!(offset_of!(RawLock, pid) == 24);

/// A lock on a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeLock {
    /// Whether the lock is a write lock; otherwise it is a read lock.
    pub writes: bool,
    /// Offset of the first locked byte.
    pub start: i64,
    /// Number of locked bytes. 0 locks up to the end of the file, even if the file grows after the call.
    pub length: i64,
}

impl RangeLock {
    /// Returns the bytes of the `struct flock` for this lock, for writing into another process. This
    /// structure is the argument of [`SET_RECORD_LOCK_COMMAND`] and [`SET_DESCRIPTION_LOCK_COMMAND`].
    #[must_use]
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&access(self.writes).to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.start.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_ne_bytes());
        bytes
    }
}

/// Returns the operation of flock(2) for a write lock or a read lock. With this operation, flock(2) does not
/// wait, and fails with EWOULDBLOCK if the lock is not available.
#[must_use]
pub fn flock_operation(writes: bool) -> u64 {
    LOCK_NO_WAIT | if writes { LOCK_EXCLUSIVE } else { LOCK_SHARED }
}

/// Returns the argument of [`SET_LEASE_COMMAND`] for a write lease or a read lease.
#[must_use]
pub fn lease_argument(writes: bool) -> u64 {
    access(writes) as u64
}

/// Takes a lock that an open file description of this process owns.
///
/// # Errors
///
/// EAGAIN if another process or another open file description holds a conflicting lock.
pub fn lock_description(file: BorrowedFd<'_>, range: RangeLock) -> Result<()> {
    let argument =
        RawLock { access: access(range.writes), whence: 0, start: range.start, length: range.length, pid: 0 };
    let command = SET_DESCRIPTION_LOCK_COMMAND as libc::c_int;
    // SAFETY: the kernel reads one `struct flock`, and `argument` has its layout.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const argument) };
    done("lock a range of an open file", result).map(drop)
}

fn access(writes: bool) -> i16 {
    if writes { WRITES } else { READS }
}

/// Reports whether a process has a file open for writing. A shared writable mapping counts as well.
///
/// `file` must be open for reading only. The caller must not have another descriptor that can write to the
/// file. The caller must own the file or have CAP_LEASE.
///
/// # Errors
///
/// EACCES if the caller neither owns the file nor has CAP_LEASE, EINVAL if the file system does not support
/// leases.
pub fn is_open_for_writing(file: BorrowedFd<'_>) -> Result<bool> {
    const SET_SIGNAL_COMMAND: libc::c_int = 10;
    const READ_LEASE: libc::c_int = libc::F_RDLCK as libc::c_int;
    const NO_LEASE: libc::c_int = libc::F_UNLCK as libc::c_int;
    // Below, a lease is taken and removed. If another process opens the file for writing before the removal,
    // the kernel sends this signal. The default action of SIGURG is to ignore the signal.
    // SAFETY: F_SETSIG takes an integer and accesses no memory.
    unsafe { libc::fcntl(file.as_raw_fd(), SET_SIGNAL_COMMAND, libc::SIGURG) };
    // SAFETY: F_SETLEASE takes an integer and accesses no memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, READ_LEASE) } == 0 {
        // SAFETY: F_SETLEASE takes an integer and accesses no memory.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, NO_LEASE) };
        return Ok(false);
    }
    match Errno::last() {
        Errno::EAGAIN => Ok(true),
        errno => Err(Error::new("take a lease on a file", errno)),
    }
}

/// An exclusive lock (flock(2)) of an open file, until the value is dropped.
#[derive(Debug)]
pub struct ExclusiveLock(File);

impl ExclusiveLock {
    /// Locks a file. Returns `None` if the file is locked through another open file description.
    ///
    /// # Errors
    ///
    /// Returns the other errors of flock(2).
    pub fn try_new(file: File) -> std::result::Result<Option<Self>, Errno> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the locked file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for ExclusiveLock {
    /// Unlocks the file. Closing it does not suffice: a process that another thread has just forked has a copy of the
    /// descriptor until its execve(2), and this copy would keep the lock.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_lock_of_a_description_keeps_others_away() {
        let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = File::options().read(true).write(true).open(path).unwrap();
        let range = RangeLock { writes: true, start: 5, length: 5 };
        lock_description(file.as_fd(), range).unwrap();
        let beside = RangeLock { start: 10, length: 0, ..range };
        lock_description(again.as_fd(), beside).unwrap();
        let error = lock_description(again.as_fd(), RangeLock { start: 9, ..range }).unwrap_err();
        assert_eq!(error.errno, Errno::EAGAIN);
    }

    #[test]
    fn a_writer_is_noticed() {
        let path = std::env::temp_dir().join(format!("undying-lease-{}", std::process::id()));
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        match is_open_for_writing(reader.as_fd()) {
            Ok(found) => assert!(found),
            Err(error) => return println!("unsupported: leases on the file system of {path:?}: {error}"),
        }
        drop(writer);
        // A child process that another test has forked holds copies of all descriptors until its exec. So the
        // file can have a writer for a short time.
        let begun = std::time::Instant::now();
        while is_open_for_writing(reader.as_fd()).unwrap() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(10), "there is no writer");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!is_open_for_writing(reader.as_fd()).unwrap(), "the lease was given back");
    }

    #[test]
    fn the_bytes_are_those_of_the_structure() {
        let bytes = RangeLock { writes: true, start: 0x0102, length: -1 }.to_bytes();
        assert_eq!((bytes[0], bytes[2], bytes[8], bytes[9]), (1, 0, 2, 1));
        assert!(bytes[16..24].iter().all(|byte| *byte == 0xff) && bytes[24..] == [0; 8]);
        assert_eq!((flock_operation(false), flock_operation(true)), (5, 6));
        assert_eq!((lease_argument(false), lease_argument(true)), (0, 1));
    }

    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
        let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let open = || ExclusiveLock::try_new(File::open(&path).unwrap()).unwrap();
        let lock = open().unwrap();
        let copy = lock.file().try_clone().unwrap();
        assert!(open().is_none());
        drop(lock);
        assert!(open().is_some());
        drop(copy);
    }
}
