//! Finds the origin of each missing page of a running process: the address of the page at the checkpoint, under which
//! the image stores the page.
//!
//! Owns: [`LiveSpace`], the list of pieces of one address space. A piece is a range of pages that are filled from
//! the image. The program changes the pieces when it moves, discards or unmaps memory, or forks.
//! Invariants: a page that the program has discarded or unmapped is never filled from the image again. A page that
//! is still missing is in a piece, also after the program has moved the page. If the page is missing at a fork, the
//! address space of the child has this piece, too.
//! Does not: read the image, or wait.
//!
//! The kernel sends a message about a change of memory only when the change is complete. Two threads can change
//! memory at the same time. For example, one thread unmaps a range, and then another thread moves memory into this
//! range. The message about the move can arrive first, while `watched` still contains the range. The range is then
//! added to `deferred`. When the message about the unmap arrives, `deferred` contains the range, so no piece is
//! removed. For each move, the kernel sends two messages: first the move, then the unmap of the old range.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use image::SpaceId;
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, RangeSet};
use sys::userfaultfd;
use sys::{Errno, Error};

/// A range of pages that are contiguous in the memory of the process and in the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    at: AddressRange,
    /// The address of the first page at the checkpoint.
    origin: Address,
}

/// One address space that is being filled.
#[derive(Clone, Debug)]
pub(super) struct LiveSpace {
    pub(super) descriptor: Arc<OwnedFd>,
    /// The page space of the image from which this address space is filled.
    pub(super) image: SpaceId,
    pieces: Vec<Piece>,
    watched: RangeSet,
    deferred: RangeSet,
}

/// The outcome of an attempt to fill memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Filled {
    /// Every page of the range is filled, or no longer needs to be filled.
    Done,
    /// The process is changing its memory. The messages of the userfaultfd must be read before the next attempt.
    Again,
}

impl LiveSpace {
    pub(super) fn new(descriptor: OwnedFd, image: SpaceId, watched: Vec<AddressRange>) -> Self {
        let pieces = watched.iter().map(|range| Piece { at: *range, origin: range.start }).collect();
        Self {
            descriptor: Arc::new(descriptor),
            image,
            pieces,
            watched: watched.into(),
            deferred: RangeSet::new(),
        }
    }

    pub(super) fn child(&self, descriptor: OwnedFd) -> Self {
        Self { descriptor: Arc::new(descriptor), deferred: RangeSet::new(), ..self.clone() }
    }

    /// Records that the program discarded pages. The pages are zero from now on.
    pub(super) fn removed(&mut self, range: AddressRange) {
        take_out(&mut self.pieces, range);
    }

    pub(super) fn unmapped(&mut self, range: AddressRange) {
        for gone in self.deferred.gaps(range) {
            take_out(&mut self.pieces, gone);
            self.watched.remove(gone);
        }
        self.deferred.remove(range);
    }

    pub(super) fn moved(&mut self, from: AddressRange, to: Address) {
        let target = AddressRange::new(to, to + from.len());
        let moved: Vec<Piece> = self.pieces.iter().filter_map(|piece| piece.within(from)).collect();
        self.removed(from);
        self.watched.remove(from);
        // `watched` still contains this part of the target, so the message about the unmap of this part has not
        // arrived.
        for range in self.watched.within(target) {
            self.deferred.insert(range);
        }
        self.removed(target);
        self.watched.insert(target);
        self.deferred.insert(from);
        self.pieces.extend(moved.into_iter().map(|piece| {
            let start = to + (piece.at.start - from.start);
            Piece { at: AddressRange::new(start, start + piece.at.len()), origin: piece.origin }
        }));
    }

    /// Returns the origin of a missing page; `None` if the page is zero.
    pub(super) fn origin(&self, page: Address) -> Option<Address> {
        let piece = self.pieces.iter().find(|piece| piece.at.contains(page))?;
        Some(piece.origin + (page - piece.at.start))
    }

    /// Fills the missing pages of a range of the image, at their present addresses. An address space that no longer
    /// exists is not an error.
    pub(super) fn fill(&self, origin: AddressRange, bytes: &[u8]) -> Result<Filled, Error> {
        for piece in &self.pieces {
            let Some(part) = piece.of_origin(origin) else { continue };
            let from = (part.origin - origin.start).get() as usize;
            let bytes = &bytes[from..from + part.at.len().get() as usize];
            if self.copy(part.at.start, bytes)? == Filled::Again {
                return Ok(Filled::Again);
            }
        }
        Ok(Filled::Done)
    }

    fn copy(&self, mut at: Address, mut bytes: &[u8]) -> Result<Filled, Error> {
        let page = PAGE_BYTES as usize;
        let mut one_by_one = false;
        while !bytes.is_empty() {
            let length = if one_by_one { page.min(bytes.len()) } else { bytes.len() };
            let (done, outcome) = userfaultfd::copy(self.descriptor.as_fd(), at, &bytes[..length]);
            let skipped = match outcome {
                Ok(()) => 0,
                // The call has copied some pages. The call for the remaining pages returns the reason why this call
                // has stopped.
                Err(Errno::EAGAIN) if done.get() > 0 => 0,
                Err(Errno::EAGAIN) => return Ok(Filled::Again),
                Err(Errno::EEXIST) => page,
                // Part of the range was unmapped, or became a separate mapping. Continue page by page.
                Err(Errno::ENOENT) if length > page => 0,
                Err(Errno::ENOENT) => page,
                // The address space no longer exists, after execve(2) or exit.
                Err(Errno::ESRCH | Errno::ENOSPC) => return Ok(Filled::Done),
                Err(errno) => return Err(Error::new(format!("fill {length} bytes at {at}"), errno)),
            };
            one_by_one = outcome == Err(Errno::ENOENT) || (one_by_one && outcome.is_ok());
            let step = skipped.max(done.get() as usize).min(bytes.len());
            at = at + ByteCount(step as u64);
            bytes = &bytes[step..];
        }
        Ok(Filled::Done)
    }

    /// Fills a page with zeros, for a thread that waits for the page.
    pub(super) fn clear(&self, page: Address) -> Result<Filled, Error> {
        match userfaultfd::zero(self.descriptor.as_fd(), page) {
            Err(Errno::EAGAIN) => Ok(Filled::Again),
            Ok(()) | Err(Errno::EEXIST | Errno::ENOENT | Errno::ESRCH | Errno::ENOSPC) => Ok(Filled::Done),
            Err(errno) => Err(Error::new(format!("clear the page at {page}"), errno)),
        }
    }

    /// Wakes the threads that wait for a page. The threads then access the page again.
    pub(super) fn wake(&self, page: Address) {
        // The call fails if the waiting thread has ended.
        let _ =
            userfaultfd::wake(self.descriptor.as_fd(), AddressRange::new(page, page + ByteCount(PAGE_BYTES)));
    }
}

impl Piece {
    /// Returns the parts of the piece outside a range.
    fn without(self, range: AddressRange) -> impl Iterator<Item = Self> {
        let parts = self.at.without(range).into_iter().filter(|at| !at.is_empty());
        parts.map(move |at| Self { at, origin: self.origin + (at.start - self.at.start) })
    }

    /// Returns the part of the piece inside a range.
    fn within(&self, range: AddressRange) -> Option<Self> {
        let at = self.at.intersection(range)?;
        Some(Self { at, origin: self.origin + (at.start - self.at.start) })
    }

    /// Returns the part of the piece whose origin is in a range of the image.
    fn of_origin(&self, range: AddressRange) -> Option<Self> {
        let all = AddressRange::new(self.origin, self.origin + self.at.len());
        let part = all.intersection(range)?;
        let start = self.at.start + (part.start - self.origin);
        Some(Self { at: AddressRange::new(start, start + part.len()), origin: part.start })
    }
}

/// Removes the pages of a range from the pieces.
fn take_out(pieces: &mut Vec<Piece>, range: AddressRange) {
    *pieces = pieces.iter().flat_map(|piece| piece.without(range)).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0x10_0000;
    const B: u64 = 0x20_0000;
    const C: u64 = 0x30_0000;
    const LENGTH: u64 = 0x1_0000;

    fn range(start: u64, length: u64) -> AddressRange {
        AddressRange::new(Address(start), Address(start + length))
    }

    fn space() -> LiveSpace {
        let nothing = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        LiveSpace::new(nothing, SpaceId(0), vec![range(A, LENGTH), range(B, LENGTH)])
    }

    fn origin(space: &LiveSpace, page: u64) -> Option<u64> {
        space.origin(Address(page)).map(Address::get)
    }

    #[test]
    fn what_was_discarded_is_zero_and_its_neighbours_are_not() {
        let mut space = space();
        space.removed(range(A + 0x2000, 0x1000));
        assert_eq!(origin(&space, A + 0x1000), Some(A + 0x1000));
        assert_eq!(origin(&space, A + 0x2000), None);
        assert_eq!(origin(&space, A + 0x3000), Some(A + 0x3000));
        assert_eq!(origin(&space, A + LENGTH), None);
    }

    #[test]
    fn what_was_moved_comes_from_where_it_was() {
        let mut space = space();
        space.moved(range(A + 0x4000, 0x4000), Address(C));
        space.unmapped(range(A + 0x4000, 0x4000));
        assert_eq!(origin(&space, C + 0x1000), Some(A + 0x5000));
        assert_eq!(origin(&space, A + 0x5000), None);
        assert_eq!(origin(&space, A + 0x8000), Some(A + 0x8000));
        space.removed(range(C, 0x1000));
        assert_eq!((origin(&space, C), origin(&space, C + 0x1000)), (None, Some(A + 0x5000)));
        let child = space.child(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        assert_eq!(origin(&child, C + 0x1000), Some(A + 0x5000));
    }

    #[test]
    fn late_news_of_an_end_does_not_end_what_was_moved_there_since() {
        let mut space = space();
        // One thread unmapped A, then another thread moved B to A. The message about the move arrives first.
        space.moved(range(B, LENGTH), Address(A));
        space.unmapped(range(A, LENGTH));
        space.unmapped(range(B, LENGTH));
        assert_eq!(origin(&space, A + 0x1000), Some(B + 0x1000));
        // This message is about the pages that were moved to A.
        space.unmapped(range(A, LENGTH));
        assert_eq!(origin(&space, A + 0x1000), None);
    }

    #[test]
    fn an_unmapping_that_is_reported_in_time_ends_its_range() {
        let mut space = space();
        space.unmapped(range(A, LENGTH));
        space.moved(range(B, LENGTH), Address(A));
        space.unmapped(range(B, LENGTH));
        assert_eq!(origin(&space, A), Some(B));
        space.unmapped(range(A, 0x1000));
        assert_eq!((origin(&space, A), origin(&space, A + 0x1000)), (None, Some(B + 0x1000)));
    }
}
