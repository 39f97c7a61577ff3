//! Copies of files that change as an epoch goes on.
//!
//! Owns: the record that names such a copy.
//! Does not: change the copy.

use std::path::Path;

use model::ByteCount;

use super::{InodeId, UndoLog, record};
use crate::error::Result;

impl UndoLog {
    /// Records that `file` in a keep directory contains the content of an inode, except for the ranges that this epoch
    /// records. The caller may change `file` after it has recorded the old content of the changed range, and records
    /// all changed ranges before the next boundary. The log removes the file as [`Self::whole_in`] does.
    pub fn shadow(&mut self, inode: InodeId, file: &Path) -> Result<()> {
        self.keep(&record::Shadow { inode: inode.0, file: record::bytes_of(file) }, file)
    }

    /// Returns the maximum size of the log in bytes.
    pub fn bytes_max(&self) -> ByteCount {
        ByteCount(self.bytes_max)
    }
}
