//! The error of a failed kernel call: operation, object and errno.
//!
//! Owns: `Error`, `Errno`, and the conversions from the results of libc and rustix, also of results that are new
//! descriptors.
//! Invariants: every error names its operation and its object.
//! Does not: advise the operator; the crates above add `help:`.
//!
//! Man page: errno(3)
//! Since: every kernel
//! Probe: none needed
//! Fallback: none needed

use std::borrow::Cow;
use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};

use model::{Address, ByteCount, Escaped, Fd, Pid, Tid};

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Errno(pub i32);

/// The object of a failed operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// No particular object.
    Nothing,
    /// A process.
    Process(Pid),
    /// A thread.
    Thread(Tid),
    /// A descriptor of a process.
    Descriptor(Pid, Fd),
    /// A range of bytes in the memory of a process.
    Memory(Pid, Address, ByteCount),
    /// A file, by its path.
    Path(String),
}

/// A failed kernel call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot {}{target}: {errno}", Escaped(operation))]
pub struct Error {
    /// What was tried: the rest of a sentence that begins with "cannot".
    pub operation: Cow<'static, str>,
    /// The object on which it was tried.
    pub target: Target,
    /// The error number from the kernel.
    pub errno: Errno,
}

/// The result of a kernel call.
pub type Result<T> = std::result::Result<T, Error>;

impl Errno {
    /// The process or thread does not exist.
    pub const ESRCH: Self = Self(libc::ESRCH);
    /// A capability or a policy does not permit the operation.
    pub const EPERM: Self = Self(libc::EPERM);
    /// The mode of a file does not permit the operation.
    pub const EACCES: Self = Self(libc::EACCES);
    /// This kernel does not have the system call or option.
    pub const ENOSYS: Self = Self(libc::ENOSYS);
    /// The kernel does not accept an argument.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// The file system is mounted read-only.
    pub const EROFS: Self = Self(libc::EROFS);
    /// The path leads to a directory.
    pub const EISDIR: Self = Self(libc::EISDIR);
    /// The object already exists.
    pub const EEXIST: Self = Self(libc::EEXIST);
    /// The object does not exist.
    pub const ENOENT: Self = Self(libc::ENOENT);
    /// A part of the path is not a directory.
    pub const ENOTDIR: Self = Self(libc::ENOTDIR);
    /// The path contains a symbolic link that is not to be followed.
    pub const ELOOP: Self = Self(libc::ELOOP);
    /// The descriptor is not open.
    pub const EBADF: Self = Self(libc::EBADF);
    /// The caller has no such child or tracee.
    pub const ECHILD: Self = Self(libc::ECHILD);
    /// The call would have to wait, or another process holds the lock.
    pub const EAGAIN: Self = Self(libc::EAGAIN);
    /// The wait has reached its time limit.
    pub const ETIMEDOUT: Self = Self(libc::ETIMEDOUT);
    /// The device has no space left.
    pub const ENOSPC: Self = Self(libc::ENOSPC);
    /// This process has opened as many descriptors as its limit permits.
    pub const EMFILE: Self = Self(libc::EMFILE);
    /// There is not enough buffer space for all the data.
    pub const ENOBUFS: Self = Self(libc::ENOBUFS);
    /// Fewer bytes were transferred than requested. The kernel has no error number for this.
    pub const SHORT: Self = Self(libc::EIO);

    /// Reports whether this program lacks descriptors or memory. The error passes when other descriptors are closed, or
    /// when a limit is raised again.
    #[must_use]
    pub const fn is_shortage(self) -> bool {
        matches!(self.0, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    }

    /// Reports whether the same call may succeed later, because a resource is missing now, or another process has
    /// interfered.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        matches!(
            self.0,
            libc::EAGAIN
                | libc::EINTR
                | libc::ENOMEM
                | libc::ENOSPC
                | libc::EDQUOT
                | libc::EMFILE
                | libc::ENFILE
                | libc::ENOBUFS
                | libc::EPIPE
                | libc::ECONNRESET
                | libc::EBUSY
                | libc::ETXTBSY
                | libc::EEXIST
                | libc::ESRCH
                | libc::ECHILD
                | libc::ETIMEDOUT
        )
    }

    /// Reports whether a path or a file handle leads to no file.
    #[must_use]
    pub const fn is_of_missing_file(self) -> bool {
        matches!(self.0, libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ESTALE)
    }

    /// Reports whether the machine or the rights of this process do not permit the call.
    #[must_use]
    pub const fn is_of_configuration(self) -> bool {
        matches!(self.0, libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EROFS)
    }

    /// Returns the result of a libc call. Returns the error number if the result is negative, which means that the call
    /// has failed.
    pub(crate) fn check<T: PartialOrd + Default>(result: T) -> std::result::Result<T, Self> {
        if result < T::default() { Err(Self::last()) } else { Ok(result) }
    }

    /// Returns the error number of the last failed libc call in the calling thread.
    #[must_use]
    pub fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

impl Error {
    /// Creates an error without an object.
    pub fn new(operation: impl Into<Cow<'static, str>>, errno: impl Into<Errno>) -> Self {
        Self { operation: operation.into(), target: Target::Nothing, errno: errno.into() }
    }

    /// Creates an error about a process.
    pub fn process(operation: impl Into<Cow<'static, str>>, pid: Pid, errno: impl Into<Errno>) -> Self {
        Self { operation: operation.into(), target: Target::Process(pid), errno: errno.into() }
    }

    /// Creates an error about a thread.
    pub fn thread(operation: impl Into<Cow<'static, str>>, tid: Tid, errno: impl Into<Errno>) -> Self {
        Self { operation: operation.into(), target: Target::Thread(tid), errno: errno.into() }
    }

    /// Creates an error about a descriptor.
    pub fn descriptor(
        operation: impl Into<Cow<'static, str>>,
        pid: Pid,
        fd: Fd,
        errno: impl Into<Errno>,
    ) -> Self {
        Self { operation: operation.into(), target: Target::Descriptor(pid, fd), errno: errno.into() }
    }

    /// Creates an error about memory of a process.
    pub fn memory(
        operation: impl Into<Cow<'static, str>>,
        pid: Pid,
        address: Address,
        length: ByteCount,
        errno: impl Into<Errno>,
    ) -> Self {
        Self {
            operation: operation.into(),
            target: Target::Memory(pid, address, length),
            errno: errno.into(),
        }
    }

    /// Creates an error about a file.
    pub fn path(
        operation: impl Into<Cow<'static, str>>,
        path: impl AsRef<std::path::Path>,
        errno: impl Into<Errno>,
    ) -> Self {
        let path = path.as_ref().display().to_string();
        Self { operation: operation.into(), target: Target::Path(path), errno: errno.into() }
    }
}

/// Returns the result of a libc call, or an error without an object if the result is negative.
pub(crate) fn done<T: PartialOrd + Default>(operation: &'static str, result: T) -> Result<T> {
    Errno::check(result).map_err(|errno| Error::new(operation, errno))
}

/// Owns the descriptor that a libc call has returned. Returns the error number if the call has failed.
///
/// # Safety
///
/// A result that is not negative is a new descriptor without another owner.
pub(crate) unsafe fn owned(result: impl Into<i64>) -> std::result::Result<OwnedFd, Errno> {
    let descriptor = Errno::check(result.into())?;
    // SAFETY: the caller has promised that the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Process(pid) => write!(f, " of pid {pid}"),
            Self::Thread(tid) => write!(f, " of thread {tid}"),
            Self::Descriptor(pid, fd) => write!(f, " of fd {fd} of pid {pid}"),
            Self::Memory(pid, address, length) => write!(f, " {length} bytes at {address} of pid {pid}"),
            Self::Path(path) => write!(f, " {}", Escaped(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_a_sentence_with_its_object() {
        let error = Error::memory("read", Pid(812), Address(0x7f00), ByteCount(4096), Errno(libc::EFAULT));
        assert_eq!(
            error.to_string(),
            "cannot read 4096 bytes at 0x7f00 of pid 812: Bad address (os error 14)"
        );
    }

    #[test]
    fn a_path_cannot_begin_a_line_or_a_control_sequence() {
        let error = Error::path("open", "/tmp/a\nhelp: b\x1b[2J", Errno::ENOENT);
        assert_eq!(
            error.to_string(),
            "cannot open /tmp/a\\nhelp: b\\u{1b}[2J: No such file or directory (os error 2)"
        );
    }
}
