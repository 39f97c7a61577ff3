//! Owner and group of restored files.
//!
//! Owns: converting the ids of a record for chown(2).
//! Does not: check permissions; the kernel does.

use rustix::fs::{Gid, Uid};
use sys::{Errno, Error, Result};

/// The value that is not an id. With this value, chown(2) leaves the owner unchanged.
const NO_ID: u32 = u32::MAX;

/// Returns an owner and a group for chown(2).
///
/// # Errors
///
/// Returns EINVAL for a value that is not an id. With such a value, chown(2) would leave the restoring process as
/// owner.
pub(crate) fn owner(user: u32, group: u32) -> Result<(Uid, Gid)> {
    if user == NO_ID || group == NO_ID {
        return Err(Error::new("set the owner of a restored file", Errno::EINVAL));
    }
    Ok((Uid::from_raw(user), Gid::from_raw(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_id_is_refused() {
        assert!(owner(0, 0).is_ok() && owner(NO_ID - 1, NO_ID - 1).is_ok());
        assert!(owner(NO_ID, 0).is_err() && owner(0, NO_ID).is_err());
    }
}
