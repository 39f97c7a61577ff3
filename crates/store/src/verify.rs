//! Checking every byte that a restore would use.
//!
//! Owns: the sequence of checks over a whole image.
//! Invariants: an image that passes restores the same bytes that were written.
//! Does not: repair.

use model::{ByteCount, PageCount};

use crate::error::{Error, Result};
use crate::load::THREADS;
use crate::reader::ImageReader;

/// What was found good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyReport {
    /// Records.
    pub records: usize,
    /// Pages, zero pages included.
    pub pages: PageCount,
    /// Bytes of pages that were read and checked.
    pub bytes: ByteCount,
}

impl ImageReader {
    /// Reads and checks every byte of its pages. Calls `good` with the number of bytes that were found good, on several
    /// threads.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong with it.
    pub fn verify(&self, good: impl Fn(ByteCount) + Sync) -> Result<VerifyReport> {
        let index = self.index();
        self.load::<Error>(index.extents(), THREADS, |run| {
            good(ByteCount(run.iter().map(|(_, bytes)| bytes.len() as u64).sum()));
            Ok(())
        })?;
        let (pages, bytes) = (index.pages(), index.stored_pages().bytes());
        Ok(VerifyReport { records: self.records().len(), pages, bytes })
    }
}
