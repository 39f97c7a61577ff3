//! Sockets that whoever restores holds itself and hands on: its standard streams, and what else it was started with.
//!
//! Owns: recognising such a socket, and picking it out of what is handed on.
//! Invariants: nothing else is saved of it; it is handed on as it is.
//! Does not: decide what is handed on; the caller of the restore does.

use std::os::fd::OwnedFd;

use prost::Message;
use sys::Error;

use super::description::Description;
use super::kind::FdCreate;
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};

/// A socket that the restorer hands on.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct InheritedSocket {
    #[prost(uint64, tag = "1")]
    device: u64,
    #[prost(uint64, tag = "2")]
    inode: u64,
}

impl InheritedSocket {
    /// Whether a description is such a socket.
    pub(crate) fn of(description: &Description, scope: &CaptureScope<'_>) -> Option<Self> {
        let stat = &description.stat;
        scope.is_inherited(stat).then_some(Self { device: stat.st_dev, inode: stat.st_ino })
    }

    /// The socket that is handed on.
    pub(crate) fn take(self, context: &FdCreate<'_>) -> Result<OwnedFd> {
        let found =
            context.inherited.iter().find(|entry| (entry.0, entry.1.get()) == (self.device, self.inode));
        let Some((_, _, socket)) = found else {
            return Err(ResourceError::File {
                path: format!("socket:[{}]", self.inode),
                why: "whoever ran the program was started with it, and it is not here now".to_owned(),
                fix: "restore from where the program was started, with the same descriptors".to_owned(),
            });
        };
        Ok(socket.try_clone().map_err(|error| Error::new("duplicate an inherited socket", error))?)
    }
}
