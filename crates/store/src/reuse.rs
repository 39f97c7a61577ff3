//! Writes pages to places that no page uses any more, so that wasted copies need no space.
//!
//! A page that the subject changes during pre-copy is copied again. Until the checkpoint is complete, nothing refers to
//! the earlier copy, and its place can be used again. A place is a page of a segment file.
//!
//! Owns: the unused places of a checkpoint that is being written; the choice between appending a page and writing it to
//! an unused place.
//! Invariants: a place is used by at most one page. A page of a buffer that contains the page twice is never written to
//! an unused place, because the later copy must win.
//! Does not: write pages.

use std::collections::BTreeSet;

use image::{PageChecksum, SpaceId};
use model::PAGE_BYTES;
use sys::page_buffer::PageBuffer;

use crate::packer::Packed;

const PAGE: usize = PAGE_BYTES as usize;

/// The place of a page in a segment.
pub(crate) trait Place: Copy + Ord {
    /// Reports whether `next` is directly behind this place in the same segment.
    fn is_before(self, next: Self) -> bool;
}

/// The number of unused places that a checkpoint may contain, because appending is faster: `pages` places, and one of
/// `share` places that are in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub(crate) pages: u64,
    pub(crate) share: u64,
}

/// The unused places of a checkpoint that is being written.
#[derive(Debug)]
pub(crate) struct Unused<P>(BTreeSet<P>);

/// Consecutive stored pages of a packed buffer that are written to consecutive places.
#[derive(Debug)]
pub(crate) struct Run<P> {
    /// The position of the first page among the stored pages of the buffer.
    pub(crate) position: usize,
    pub(crate) space: SpaceId,
    /// The number of the first page.
    pub(crate) page: u64,
    pub(crate) places: Vec<P>,
    pub(crate) checksums: Vec<PageChecksum>,
}

impl<P> Default for Unused<P> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<P: Place> Unused<P> {
    /// Adds places whose pages were discarded.
    pub(crate) fn add(&mut self, places: impl IntoIterator<Item = P>) {
        self.0.extend(places);
    }

    /// Returns the number of unused places.
    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Chooses places for the stored pages of a packed buffer. `all` is the number of places of the checkpoint.
    /// `earlier` returns the place of an earlier copy of a page, if this place can be written again. `is_free` reports
    /// whether an unused place can still be written. The caller writes the returned runs, calls [`remove`], and appends
    /// the remaining pages.
    pub(crate) fn choose(
        &mut self,
        packed: &Packed,
        all: u64,
        allowance: Allowance,
        earlier: impl Fn(SpaceId, u64) -> Option<P>,
        is_free: impl Fn(P) -> bool,
    ) -> Vec<Run<P>> {
        if has_page_twice(packed) {
            return Vec::new();
        }
        let places: Vec<Option<P>> =
            packed.pages.iter().map(|(space, page, _)| earlier(*space, *page)).collect();
        let is_stored = |number: &usize| packed.pages[*number].2.is_some();
        let (again, zeroed): (Vec<usize>, Vec<usize>) =
            (0..places.len()).filter(|number| places[*number].is_some()).partition(is_stored);
        self.add(zeroed.into_iter().filter_map(|number| places[number]));
        let unused = (self.0.len() + again.len()) as u64;
        if unused <= allowance.pages + all.saturating_sub(unused) / allowance.share {
            self.add(again.into_iter().filter_map(|number| places[number]));
            return Vec::new();
        }
        let mut runs: Vec<Run<P>> = Vec::new();
        let mut position = 0;
        for ((space, page, checksum), place) in packed.pages.iter().zip(places) {
            let Some(checksum) = checksum else { continue };
            let place = place.or_else(|| self.take(&is_free));
            if let Some(place) = place {
                enter(&mut runs, (position, *space, *page), *checksum, place);
            }
            position += 1;
        }
        runs
    }

    fn take(&mut self, is_free: impl Fn(P) -> bool) -> Option<P> {
        std::iter::from_fn(|| self.0.pop_first()).find(|place| is_free(*place))
    }
}

fn enter<P: Place>(
    runs: &mut Vec<Run<P>>,
    (position, space, page): (usize, SpaceId, u64),
    checksum: PageChecksum,
    place: P,
) {
    if let Some(run) = runs.last_mut()
        && (run.position + run.places.len(), run.space, run.page + run.places.len() as u64)
            == (position, space, page)
        && run.places.last().is_some_and(|last| last.is_before(place))
    {
        run.places.push(place);
        run.checksums.push(checksum);
        return;
    }
    runs.push(Run { position, space, page, places: vec![place], checksums: vec![checksum] });
}

fn has_page_twice(packed: &Packed) -> bool {
    let runs = packed.pages.chunk_by(|(space, page, _), (of, next, _)| (space, page + 1) == (of, *next));
    let mut ranges: Vec<_> = runs.map(|run| (run[0].0, run[0].1, run.len() as u64)).collect();
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1 + pair[0].2 > pair[1].1)
}

impl<P> Run<P> {
    /// Returns the bytes of the run in the packed buffer.
    pub(crate) fn bytes<'a>(&self, buffer: &'a PageBuffer) -> &'a [u8] {
        &buffer[self.position * PAGE..(self.position + self.places.len()) * PAGE]
    }
}

/// Removes the pages of the runs from a packed buffer. The other stored pages follow each other then.
pub(crate) fn remove<P>(buffer: &mut PageBuffer, packed: &mut Packed, runs: &[Run<P>]) {
    if runs.is_empty() {
        return;
    }
    let mut removed = vec![false; packed.stored as usize];
    runs.iter().for_each(|run| removed[run.position..run.position + run.places.len()].fill(true));
    let (mut from, mut to) = (0, 0);
    packed.pages.retain(|(.., checksum)| {
        if checksum.is_none() {
            return true;
        }
        let stays = !removed[from];
        if stays {
            if from != to {
                buffer.copy_within(from * PAGE..(from + 1) * PAGE, to * PAGE);
            }
            to += 1;
        }
        from += 1;
        stays
    });
    packed.stored = to as u32;
}
