//! The standard streams that a subject shares with this program.
//!
//! Owns: their identity for a checkpoint, and duplicates of them for a restore.
//! Invariants: the numbers 0 to 2 are looked at and never changed; a closed one is left out.
//! Does not: know what kind of file they are.

use std::os::fd::{BorrowedFd, OwnedFd};

use model::Inode;
use sys::Error;

use crate::error::Result;

/// Device and inode of each standard stream.
pub(crate) fn identities() -> Vec<(u64, Inode)> {
    let stats = streams().into_iter().filter_map(|stream| rustix::fs::fstat(stream).ok());
    stats.map(|stat| (stat.st_dev, Inode(stat.st_ino))).collect()
}

/// Device, inode and a duplicate of each standard stream.
pub(crate) fn duplicates() -> Result<Vec<(u64, Inode, OwnedFd)>> {
    let mut found = Vec::new();
    for stream in streams() {
        let Ok(stat) = rustix::fs::fstat(stream) else { continue };
        let copy = rustix::io::fcntl_dupfd_cloexec(stream, 3)
            .map_err(|errno| Error::new("duplicate a standard stream", errno))?;
        found.push((stat.st_dev, Inode(stat.st_ino), copy));
    }
    Ok(found)
}

fn streams() -> [BorrowedFd<'static>; 3] {
    [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
}
