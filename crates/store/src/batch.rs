//! A buffer that is being filled with pages, and the list of these pages.
//!
//! Owns: `PageBatch`, the order of its pieces in the buffer.
//! Invariants: pieces are contiguous in the buffer, in the order in which they were pushed.
//! Does not: copy or hash.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use image::{Extent, SpaceId};
use model::{Address, PAGE_BYTES, PageCount};
use sys::page_buffer::PageBuffer;

/// Consecutive pages of one space, in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The address space or shared object.
    pub space: SpaceId,
    /// The first page's address.
    pub start: Address,
    /// How many pages.
    pub pages: PageCount,
    /// Where in the batch's buffer they begin.
    pub at: PageCount,
}

/// Pages on their way into an image.
pub struct PageBatch {
    pub(crate) buffer: PageBuffer,
    pieces: Vec<Piece>,
    filled: PageCount,
    lent: Option<Lent>,
}

/// A buffer that a pool counts as one of its own, until it comes back or is lost.
#[derive(Debug)]
pub(crate) struct Lent(Option<Arc<AtomicUsize>>);

impl Lent {
    /// One more of those counted here.
    pub(crate) fn count(made: &Arc<AtomicUsize>) -> Self {
        made.fetch_add(1, Ordering::Relaxed);
        Self::again(made)
    }

    /// One that is counted already.
    pub(crate) fn again(made: &Arc<AtomicUsize>) -> Self {
        Self(Some(Arc::clone(made)))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(made) = self.0.take() {
            made.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl PageBatch {
    /// A batch over a buffer of the caller's own, beside those of the writer's pool.
    #[must_use]
    pub const fn over(buffer: PageBuffer) -> Self {
        Self { buffer, pieces: Vec::new(), filled: PageCount(0), lent: None }
    }

    /// A batch of a pool, whose list of pieces has its memory already. Dropped, its pool may make another.
    pub(crate) const fn lent(buffer: PageBuffer, pieces: Vec<Piece>, lent: Lent) -> Self {
        Self { buffer, pieces, filled: PageCount(0), lent: Some(lent) }
    }

    /// How many pages it has been given, those left out included.
    #[must_use]
    pub const fn filled(&self) -> PageCount {
        self.filled
    }

    /// How many more pages fit.
    #[must_use]
    pub fn room(&self) -> PageCount {
        PageCount(self.buffer.size().get() / PAGE_BYTES - self.filled.get())
    }

    /// Adds consecutive pages at the end and gives the bytes to fill, or `None` when they do not fit.
    /// The bytes are those of whatever was in the buffer before: all of them must be written.
    pub fn push(&mut self, space: SpaceId, start: Address, pages: PageCount) -> Option<&mut [u8]> {
        if pages > self.room() {
            return None;
        }
        let at = self.filled;
        self.filled += pages;
        self.pieces.push(Piece { space, start, pages, at });
        Some(&mut self.buffer[byte_range(at, pages)])
    }

    /// Adds as many of an extent's pages from `done` on as fit, with their bytes or zeros, and gives how many.
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

    /// The pages so far.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The bytes of all pages pushed so far, in order: to be filled with one scattered read.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[byte_range(PageCount(0), self.filled)]
    }

    /// Keeps only the pieces that `keep` returns true for: what could not be copied is left out.
    pub fn retain(&mut self, keep: impl FnMut(&Piece) -> bool) {
        self.pieces.retain(keep);
    }

    /// Whether it has no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Forgets all pages.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.filled = PageCount(0);
    }

    /// The pool that it came from counts it still.
    pub(crate) fn into_parts(self) -> (PageBuffer, Vec<Piece>) {
        let Self { buffer, pieces, .. } = self.unlent();
        (buffer, pieces)
    }

    /// As one of the caller's own: the pool that it came from does not make another when it is lost.
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
