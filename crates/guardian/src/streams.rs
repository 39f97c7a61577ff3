//! Open files that a subject shares with this program.
//!
//! Owns: their identity for a checkpoint, and duplicates of them for a restore.
//! Invariants: descriptors are looked at and never changed; those that we have opened for ourselves close on exec
//! and are none of a subject's.
//! Does not: know what kind of file they are.

use std::os::fd::{AsFd, OwnedFd};

use model::{Fd, Inode, Pid};
use sys::{Error, pidfd};
use tracee::procfs;

use crate::error::Result;

/// What a subject has in common with us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shared {
    /// The standard streams: all that two programs started in one place can count on.
    Standard,
    /// Everything that a program which we start inherits.
    Inherited,
}

/// Device, inode and a duplicate of each shared file.
pub(crate) fn duplicates(shared: Shared) -> Result<Vec<(u64, Inode, OwnedFd)>> {
    let mut found: Vec<(u64, Inode, OwnedFd)> = Vec::new();
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
        // One of them may be closed.
        if rustix::io::fcntl_getfd(stream).is_ok() {
            let copy = rustix::io::fcntl_dupfd_cloexec(stream, 3);
            found.extend(named(copy.map_err(|errno| Error::new("duplicate a standard stream", errno))?));
        }
    }
    if shared == Shared::Inherited {
        let own = Pid(std::process::id() as i32);
        let handle = pidfd::open(own)?;
        for fd in procfs::descriptors(own)?.into_iter().filter(|fd| *fd > Fd(2)) {
            // The descriptor of the listing itself is gone already.
            let Ok(copy) = pidfd::duplicate(handle.as_fd(), own, fd) else { continue };
            if is_inherited(own, fd) {
                found.extend(named(copy));
            }
        }
    }
    Ok(found)
}

/// Device and inode of each shared file.
pub(crate) fn identities(shared: Shared) -> Result<Vec<(u64, Inode)>> {
    Ok(duplicates(shared)?.into_iter().map(|(device, inode, _)| (device, inode)).collect())
}

/// Whether a program that we start has this descriptor as well.
fn is_inherited(own: Pid, fd: Fd) -> bool {
    procfs::descriptor_info(own, fd).is_ok_and(|info| !info.close_on_exec())
}

fn named(copy: OwnedFd) -> Option<(u64, Inode, OwnedFd)> {
    let stat = rustix::fs::fstat(&copy).ok()?;
    Some((stat.st_dev, Inode(stat.st_ino), copy))
}

#[cfg(test)]
mod tests {
    use rustix::io::FdFlags;

    use super::*;

    #[test]
    fn what_closes_on_exec_is_not_shared() {
        let own = std::fs::File::open("/proc/self/stat").unwrap();
        let other = std::fs::File::open("/proc/self/maps").unwrap();
        rustix::io::fcntl_setfd(&other, FdFlags::empty()).unwrap();
        let inode = |file: &std::fs::File| Inode(rustix::fs::fstat(file).unwrap().st_ino);
        let shared = identities(Shared::Inherited).unwrap();
        assert!(!shared.iter().any(|(_, found)| *found == inode(&own)));
        assert!(shared.iter().any(|(_, found)| *found == inode(&other)));
        assert!(!identities(Shared::Standard).unwrap().iter().any(|(_, found)| *found == inode(&other)));
    }
}
