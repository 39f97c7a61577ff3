//! Finds the open file description of the subject to which a descriptor of this process refers.
//!
//! Owns: the comparison of a descriptor with all descriptions.
//! Does not: find descriptors.

use std::cmp::Ordering;
use std::os::fd::{AsRawFd, BorrowedFd};

use model::{DescriptionId, Fd, Pid};
use sys::{Error, kcmp};

use super::description::Description;
use crate::error::Result;

/// Returns the description of the subject to which a descriptor of this process refers. Compares with kcmp(2).
pub(super) fn identify(
    descriptions: &[Description],
    descriptor: BorrowedFd<'_>,
) -> Result<Option<DescriptionId>> {
    let stat = rustix::fs::fstat(descriptor).map_err(|errno| Error::new("stat a descriptor", errno))?;
    let ourselves = Pid(std::process::id() as i32);
    let own = (ourselves, Fd(descriptor.as_raw_fd()));
    let same_file =
        |known: &&Description| (known.stat.st_dev, known.stat.st_ino) == (stat.st_dev, stat.st_ino);
    for known in descriptions.iter().filter(same_file) {
        let other = (ourselves, Fd(known.duplicate.as_raw_fd()));
        if kcmp::compare_files(own, other)? == Ordering::Equal {
            return Ok(Some(known.id));
        }
    }
    Ok(None)
}
