//! Files that the restoring process has open and passes on to the subject: its standard streams.
//!
//! Owns: choosing the inherited file for an open file description.
//! Invariants: each inherited file becomes at most one description of the subject. For further descriptions, the same
//! file is opened again.
//! Does not: decide which files are passed on; the caller of the restore does.

use std::os::fd::OwnedFd;

use model::Inode;
use rustix::fs::OFlags;
use sys::{Error, Result};

use super::opening::{access_mode, flags_for, reopen};
use crate::fd::kind::FdCreate;

/// Passes on inherited files, each file once.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    given: Vec<usize>,
}

impl Inherited {
    /// Returns the inherited file with this device and inode, if the file permits the access mode in `flags`. Returns
    /// `None` if no such file is inherited.
    pub(crate) fn take(
        &mut self,
        context: &FdCreate<'_>,
        device: u64,
        inode: Inode,
        flags: u32,
    ) -> Result<Option<OwnedFd>> {
        self.take_if(context, flags, |entry| (entry.0, entry.1) == (device, inode))
    }

    /// Returns an inherited file for which `fits` is true, if the file permits the access mode in `flags`.
    pub(crate) fn take_if(
        &mut self,
        context: &FdCreate<'_>,
        flags: u32,
        fits: impl Fn(&(u64, Inode, OwnedFd)) -> bool,
    ) -> Result<Option<OwnedFd>> {
        let wanted = access_mode(flags);
        let mut usable = Vec::new();
        for (index, (_, _, file)) in context.inherited.iter().enumerate().filter(|(_, entry)| fits(entry)) {
            let has = rustix::fs::fcntl_getfl(file)
                .map_err(|errno| Error::new("get the flags of an inherited file", errno))?
                & OFlags::RWMODE;
            if has == wanted {
                usable.insert(0, index);
            } else if has == OFlags::RDWR {
                usable.push(index);
            }
        }
        if let Some(index) = usable.iter().find(|index| !self.given.contains(index)) {
            self.given.push(*index);
            let duplicate = context.inherited[*index].2.try_clone();
            return Ok(Some(duplicate.map_err(|error| Error::new("duplicate an inherited file", error))?));
        }
        match usable.first() {
            Some(index) => reopen(&context.inherited[*index].2, flags_for(flags)).map(Some),
            None => Ok(None),
        }
    }
}
