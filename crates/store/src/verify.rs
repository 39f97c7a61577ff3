//! Checking every byte that a restore would use.
//!
//! Owns: the sequence of checks over a whole image.
//! Invariants: an image that passes restores the same bytes that were written.
//! Does not: repair.

use std::num::NonZeroUsize;
use std::path::Path;

use model::{ByteCount, PageCount};

use crate::backend::directory::Directory;
use crate::error::{Error, Result};
use crate::medium::Medium;
use crate::reader::ImageReader;

/// Threads that read: one waits for the device while the other computes checksums.
const THREADS: NonZeroUsize = NonZeroUsize::new(2).expect("2 is not zero");

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

/// Checks the image in this directory.
///
/// # Errors
///
/// The first thing that is wrong with it.
pub fn verify(path: &Path) -> Result<VerifyReport> {
    verify_on(&Directory::default(), path)
}

/// As `verify`, on any medium.
///
/// # Errors
///
/// As `verify`.
pub fn verify_on(medium: &dyn Medium, path: &Path) -> Result<VerifyReport> {
    let image = ImageReader::open_on(medium, path)?;
    image.load::<Error>(image.index().extents(), THREADS, |_| Ok(()))?;
    let index = image.index();
    Ok(VerifyReport {
        records: image.records().len(),
        pages: index.pages(),
        bytes: index.stored_pages().bytes(),
    })
}
