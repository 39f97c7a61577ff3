//! Sockets that the restoring process has inherited and passes on to the subject, such as its standard streams.
//!
//! Owns: recognizing an inherited socket in a capture, and finding this socket in a restore among the inherited
//! descriptors.
//! Invariants: only the identity of the socket is saved. The socket is passed on unchanged.
//! Does not: decide which sockets are passed on; the caller of the restore does.

use std::os::fd::OwnedFd;

use prost::Message;
use sys::Error;

use super::description::Description;
use super::kind::FdCreate;
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};

/// Identity of an inherited socket, as it is in the image.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct InheritedSocket {
    #[prost(uint64, tag = "1")]
    device: u64,
    #[prost(uint64, tag = "2")]
    inode: u64,
}

impl InheritedSocket {
    /// Returns the identity of a description's socket, if the restoring process will inherit this socket.
    pub(crate) fn of(description: &Description, scope: &CaptureScope<'_>) -> Option<Self> {
        let stat = &description.stat;
        scope.is_inherited(stat).then_some(Self { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns a duplicate of the inherited socket.
    pub(crate) fn take(self, context: &FdCreate<'_>) -> Result<OwnedFd> {
        let found =
            context.inherited.iter().find(|entry| (entry.0, entry.1.get()) == (self.device, self.inode));
        let Some((_, _, socket)) = found else {
            return Err(ResourceError::File {
                path: format!("socket:[{}]", self.inode),
                why:
                    "the undying process that ran the program had inherited this socket, and this process has not"
                        .to_owned(),
                fix: "restore from the shell or service that started the program, with the same descriptors"
                    .to_owned(),
            });
        };
        Ok(socket.try_clone().map_err(|error| Error::new("duplicate an inherited socket", error))?)
    }
}
