//! Sockets that the restoring process has inherited and passes on: its standard streams and others.
//!
//! Owns: recognizing such a socket, and finding it among the inherited descriptors.
//! Invariants: only its identity is saved; it is passed on unchanged.
//! Does not: decide which sockets are passed on; the caller of the restore does.

use std::os::fd::OwnedFd;

use prost::Message;
use sys::Error;

use super::description::Description;
use super::kind::FdCreate;
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};

/// Identity of an inherited socket.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct InheritedSocket {
    #[prost(uint64, tag = "1")]
    device: u64,
    #[prost(uint64, tag = "2")]
    inode: u64,
}

impl InheritedSocket {
    /// The identity, if a description is such a socket.
    pub(crate) fn of(description: &Description, scope: &CaptureScope<'_>) -> Option<Self> {
        let stat = &description.stat;
        scope.is_inherited(stat).then_some(Self { device: stat.st_dev, inode: stat.st_ino })
    }

    /// A duplicate of the inherited socket.
    pub(crate) fn take(self, context: &FdCreate<'_>) -> Result<OwnedFd> {
        let found =
            context.inherited.iter().find(|entry| (entry.0, entry.1.get()) == (self.device, self.inode));
        let Some((_, _, socket)) = found else {
            return Err(ResourceError::File {
                path: format!("socket:[{}]", self.inode),
                why:
                    "undying had inherited it when it ran the program, and this process has not inherited it"
                        .to_owned(),
                fix: "restore from the shell or service that started the program, with the same descriptors"
                    .to_owned(),
            });
        };
        Ok(socket.try_clone().map_err(|error| Error::new("duplicate an inherited socket", error))?)
    }
}
