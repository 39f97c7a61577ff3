//! A buffer that is being filled with pages, and the list of these pages.
//!
//! Owns: `PageBatch`, `PageChange`, and the order of its pieces in the buffer.
//! Invariants: pieces are contiguous in the buffer, in the order in which they were pushed.
//! Does not: copy or hash pages.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use image::{Extent, SpaceId};
use model::{Address, AddressRange, PAGE_BYTES, PageCount};
use sys::page_buffer::PageBuffer;

/// A range of consecutive pages of one address space in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The address space or shared object.
    pub space: SpaceId,
    /// The address of the first page.
    pub start: Address,
    /// The number of pages.
    pub pages: PageCount,
    /// The position of the first page in the buffer, counted in pages.
    pub at: PageCount,
    /// Whether several processes may share the pages, copy-on-write. An image stores such pages once.
    pub is_shared: bool,
}

/// A buffer with pages that are added to a checkpoint.
pub struct PageBatch {
    pub(crate) buffer: PageBuffer,
    pieces: Vec<Piece>,
    filled: PageCount,
    lent: Option<Lent>,
}

/// A change of the pages of a checkpoint. Changes take effect in the order in which they are passed to the sink.
#[derive(Debug)]
pub enum PageChange {
    /// Adds these pages.
    Pages(PageBatch),
    /// Removes a range of pages. If a page of this range is added after the removal, the page belongs to the checkpoint
    /// again.
    Discard(SpaceId, AddressRange),
}

/// Counts a buffer as used by a pool. Dropping the value decreases the number of used buffers. `PageBatch::unlent`
/// prevents the decrease.
#[derive(Debug)]
pub(crate) struct Lent(Option<Arc<AtomicUsize>>);

impl Lent {
    /// Counts one more buffer.
    pub(crate) fn count(used: &Arc<AtomicUsize>) -> Self {
        used.fetch_add(1, Ordering::Relaxed);
        Self::again(used)
    }

    /// Refers to a buffer that is already counted.
    pub(crate) fn again(used: &Arc<AtomicUsize>) -> Self {
        Self(Some(Arc::clone(used)))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(used) = self.0.take() {
            used.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl PageBatch {
    /// Creates a batch with a buffer that does not belong to the pool of the writer.
    #[must_use]
    pub const fn over(buffer: PageBuffer) -> Self {
        Self { buffer, pieces: Vec::new(), filled: PageCount(0), lent: None }
    }

    /// Creates a batch with a buffer of a pool. `pieces` has enough capacity. If the batch is dropped, the pool may
    /// lend another buffer.
    pub(crate) const fn lent(buffer: PageBuffer, pieces: Vec<Piece>, lent: Lent) -> Self {
        Self { buffer, pieces, filled: PageCount(0), lent: Some(lent) }
    }

    /// Returns the number of pages pushed so far, including pages that `retain` has removed.
    #[must_use]
    pub const fn filled(&self) -> PageCount {
        self.filled
    }

    /// Returns the number of pages that can still be pushed.
    #[must_use]
    pub fn room(&self) -> PageCount {
        PageCount(self.buffer.size().get() / PAGE_BYTES - self.filled.get())
    }

    /// Adds consecutive pages at the end and returns the bytes to fill. Returns `None` if the pages do not fit. The
    /// returned bytes contain old data: the caller must overwrite all returned bytes.
    pub fn push(&mut self, space: SpaceId, start: Address, pages: PageCount) -> Option<&mut [u8]> {
        if pages > self.room() {
            return None;
        }
        let at = self.filled;
        self.filled += pages;
        self.pieces.push(Piece { space, start, pages, at, is_shared: false });
        Some(&mut self.buffer[byte_range(at, pages)])
    }

    /// Records that several processes may share the pages that were pushed last.
    pub fn mark_shared(&mut self) {
        if let Some(last) = self.pieces.last_mut() {
            last.is_shared = true;
        }
    }

    /// Adds pages of an extent, beginning with page number `done` of the extent, until the buffer is full. Returns the
    /// number of added pages. Without `bytes`, the pages are zero.
    pub(crate) fn copy(&mut self, extent: &Extent, done: PageCount, bytes: Option<&[u8]>) -> PageCount {
        let pages = self.room().min(PageCount(extent.pages.get() - done.get()));
        if let Some(place) = self.push(extent.space, extent.start + done.bytes(), pages) {
            match bytes {
                Some(bytes) => place.copy_from_slice(&bytes[byte_range(done, pages)]),
                None => place.fill(0),
            }
        }
        pages
    }

    /// Returns the pieces pushed so far.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the bytes of the pages of one of the pieces.
    #[must_use]
    pub fn bytes_of(&self, piece: &Piece) -> &[u8] {
        &self.buffer[byte_range(piece.at, piece.pages)]
    }

    /// Returns the bytes of all pages pushed so far, in order. One scattered read can fill these bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[byte_range(PageCount(0), self.filled)]
    }

    /// Removes the pieces for which `keep` returns false, for example pages that could not be copied.
    pub fn retain(&mut self, keep: impl FnMut(&Piece) -> bool) {
        self.pieces.retain(keep);
    }

    /// Reports whether the batch contains no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Removes all pages.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.filled = PageCount(0);
    }

    /// Reports whether the buffer does not belong to the pool of the writer.
    pub(crate) const fn is_foreign(&self) -> bool {
        self.lent.is_none()
    }

    /// Returns the buffer and the pieces. The pool continues to count the buffer.
    pub(crate) fn into_parts(self) -> (PageBuffer, Vec<Piece>) {
        let Self { buffer, pieces, .. } = self.unlent();
        (buffer, pieces)
    }

    /// Detaches the batch from the count of the pool. If the batch is lost, the pool does not lend a replacement.
    pub(crate) fn unlent(mut self) -> Self {
        if let Some(lent) = &mut self.lent {
            lent.0 = None;
        }
        self
    }
}

impl fmt::Debug for PageBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageBatch").field("pieces", &self.pieces).finish_non_exhaustive()
    }
}

fn byte_range(at: PageCount, pages: PageCount) -> std::ops::Range<usize> {
    let start = at.bytes().get() as usize;
    start..start + pages.bytes().get() as usize
}
