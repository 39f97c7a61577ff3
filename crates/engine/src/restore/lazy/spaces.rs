//! Which missing pages of a running process come from where in the image.
//!
//! Owns: `LiveSpace`: pieces of one address space, as they are moved, discarded, unmapped and inherited.
//! Invariants: a page that the program has discarded or unmapped is never filled from the image again; a page that
//! is still to come is in a piece, wherever the program has moved it, and in each child that was forked without it.
//! Does not: read the image, or wait.
//!
//! Two threads may change the memory of one process at once, and the kernel tells of a change only when it is done.
//! So the news that a place was unmapped may come after the news that something was moved to that very place. What
//! is moved to where by all that is known something lies proves such news to be under way: it is then deferred, and
//! ends nothing when it comes. Moving itself is told as the move and then as the end of the old place.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use image::SpaceId;
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, RangeSet};
use sys::userfaultfd;
use sys::{Errno, Error};

/// Pages that came from one place of the image and lie together still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    at: AddressRange,
    /// Where the first of them was at the checkpoint.
    origin: Address,
}

/// One address space that is being filled.
#[derive(Clone, Debug)]
pub(super) struct LiveSpace {
    pub(super) descriptor: Arc<OwnedFd>,
    /// The space of the image that it began as.
    pub(super) image: SpaceId,
    pieces: Vec<Piece>,
    watched: RangeSet,
    deferred: RangeSet,
}

/// What came of an attempt to fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Filled {
    /// What is missing there no longer comes from the image.
    Done,
    /// The process is changing its memory: again, once the news of it has been read.
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

    /// A child that was forked off.
    pub(super) fn child(&self, descriptor: OwnedFd) -> Self {
        Self { descriptor: Arc::new(descriptor), deferred: RangeSet::new(), ..self.clone() }
    }

    /// Pages are discarded: they are zero from now on.
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
        // Something lies there still by all that is known: its end has not been told yet.
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

    /// Where in the image the page at an address comes from; `None` if it is zero.
    pub(super) fn origin(&self, page: Address) -> Option<Address> {
        let piece = self.pieces.iter().find(|piece| piece.at.contains(page))?;
        Some(piece.origin + (page - piece.at.start))
    }

    /// Fills what is missing of some pages of the image, wherever they are now. An address space that is gone is no
    /// error.
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
                // The next attempt tells what stopped this one.
                Err(Errno::EAGAIN) if done.get() > 0 => 0,
                Err(Errno::EAGAIN) => return Ok(Filled::Again),
                Err(Errno::EEXIST) => page,
                // Part of it has been unmapped, or is an area of its own by now.
                Err(Errno::ENOENT) if length > page => 0,
                Err(Errno::ENOENT) => page,
                // The address space is gone, by exec or exit.
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

    /// Gives a thread that waits for a page zeros.
    pub(super) fn clear(&self, page: Address) -> Result<Filled, Error> {
        match userfaultfd::zero(self.descriptor.as_fd(), page) {
            Err(Errno::EAGAIN) => Ok(Filled::Again),
            Ok(()) | Err(Errno::EEXIST | Errno::ENOENT | Errno::ESRCH | Errno::ENOSPC) => Ok(Filled::Done),
            Err(errno) => Err(Error::new(format!("clear the page at {page}"), errno)),
        }
    }

    /// Makes threads that wait for a page fault again.
    pub(super) fn wake(&self, page: Address) {
        // It fails where the waiting thread has ended.
        let _ =
            userfaultfd::wake(self.descriptor.as_fd(), AddressRange::new(page, page + ByteCount(PAGE_BYTES)));
    }
}

impl Piece {
    /// What is left of it outside of a range.
    fn without(self, range: AddressRange) -> impl Iterator<Item = Self> {
        let parts = self.at.without(range).into_iter().filter(|at| !at.is_empty());
        parts.map(move |at| Self { at, origin: self.origin + (at.start - self.at.start) })
    }

    /// What of it lies in a range.
    fn within(&self, range: AddressRange) -> Option<Self> {
        let at = self.at.intersection(range)?;
        Some(Self { at, origin: self.origin + (at.start - self.at.start) })
    }

    /// What of it comes from a range of the image.
    fn of_origin(&self, range: AddressRange) -> Option<Self> {
        let all = AddressRange::new(self.origin, self.origin + self.at.len());
        let part = all.intersection(range)?;
        let start = self.at.start + (part.start - self.origin);
        Some(Self { at: AddressRange::new(start, start + part.len()), origin: part.start })
    }
}

/// Takes the pages of a range out of pieces.
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
        // One thread unmapped A, another moved B there; the second was told first.
        space.moved(range(B, LENGTH), Address(A));
        space.unmapped(range(A, LENGTH));
        space.unmapped(range(B, LENGTH));
        assert_eq!(origin(&space, A + 0x1000), Some(B + 0x1000));
        // This end is meant.
        space.unmapped(range(A, LENGTH));
        assert_eq!(origin(&space, A + 0x1000), None);
    }

    #[test]
    fn an_end_that_was_told_in_time_ends_what_it_names() {
        let mut space = space();
        space.unmapped(range(A, LENGTH));
        space.moved(range(B, LENGTH), Address(A));
        space.unmapped(range(B, LENGTH));
        assert_eq!(origin(&space, A), Some(B));
        space.unmapped(range(A, 0x1000));
        assert_eq!((origin(&space, A), origin(&space, A + 0x1000)), (None, Some(B + 0x1000)));
    }
}
