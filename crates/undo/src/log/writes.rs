//! What the log writes after a pause (docs/design/0056).
//!
//! Owns: making the writes, and creating the file of the next epoch in advance, without access to the log.
//! Does not: order the writes; `write_queue` does.

use std::sync::Arc;

use super::files::new_file;
use super::storage::{LogFile, Storage};
use crate::error::Result;

/// What a log has to write after a pause.
#[derive(Debug)]
pub struct Writes {
    pub(super) storage: Arc<dyn Storage>,
    /// The ordinal number of the epoch whose file is to be created in advance.
    pub(super) next: Option<u64>,
}

/// The file of an epoch that may begin.
#[derive(Debug)]
pub struct Prepared {
    pub(super) ordinal: u64,
    pub(super) file: Box<dyn LogFile>,
}

impl Writes {
    /// Writes the records that were held back.
    ///
    /// # Errors
    ///
    /// A record could not be written. Later records fail until the next boundary, and the present epoch is useless.
    pub fn make(&self) -> Result<()> {
        self.storage.drain()
    }

    /// Reserves disk space, and creates the file of the next epoch, so that no boundary creates it.
    ///
    /// # Errors
    ///
    /// The file cannot be created now.
    pub fn prepare(&self) -> Result<Option<Prepared>> {
        self.storage.reserve();
        let file = |ordinal| Ok(Prepared { ordinal, file: new_file(&*self.storage, ordinal)? });
        self.next.map(file).transpose()
    }
}
