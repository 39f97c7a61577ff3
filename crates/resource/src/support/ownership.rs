//! Owner and group of what is made again.
//!
//! Owns: the ids of a record as chown(2) takes them.
//! Does not: decide who may have what; the kernel does.

use rustix::fs::{Gid, Uid};
use sys::{Errno, Error, Result};

/// No id: chown(2) leaves the owner as it is.
const NOBODY: u32 = u32::MAX;

/// An owner and a group.
///
/// # Errors
///
/// EINVAL for what is no id. A file would stay the restorer's.
pub(crate) fn owner(user: u32, group: u32) -> Result<(Uid, Gid)> {
    if user == NOBODY || group == NOBODY {
        return Err(Error::new("give what is made again to a user without an id", Errno::EINVAL));
    }
    Ok((Uid::from_raw(user), Gid::from_raw(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_id_owns_nothing() {
        assert!(owner(0, 0).is_ok() && owner(NOBODY - 1, NOBODY - 1).is_ok());
        assert!(owner(NOBODY, 0).is_err() && owner(0, NOBODY).is_err());
    }
}
