//! An open file of a log on disk.
//!
//! Owns: writing at an offset, also with the space that is reserved for a full disk.
//! Does not: decide when to write.

use std::fs::File;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use sys::Error;

use super::reserve::Reserve;
use crate::error::{Result, UndoError};

/// An open log file.
#[derive(Debug)]
pub(super) struct OpenedFile {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) reserve: Option<Arc<Reserve>>,
}

impl OpenedFile {
    pub(super) fn failed(&self, operation: &'static str, errno: Errno) -> UndoError {
        Error::path(operation, &self.path, errno).into()
    }

    fn spends_reserve(&self, offset: u64) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.spend(&self.file, offset))
    }

    /// Writes the parts one after the other, from an offset on.
    pub(super) fn write(&self, mut offset: u64, parts: [&[u8]; 2]) -> Result<()> {
        let mut parts = parts.map(IoSlice::new);
        let mut rest = &mut parts[..];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match rustix::io::pwritev(&self.file, rest, offset) {
                Ok(0) => return Err(self.failed("write", Errno::NOSPC)),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT) if self.spends_reserve(offset) => {}
                Err(errno) => return Err(self.failed("write", errno)),
            }
        }
        Ok(())
    }
}
