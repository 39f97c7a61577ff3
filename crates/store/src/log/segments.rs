//! The table of a log's segments in the memory of the writer: segment numbers, live pages, block indexes. A block index
//! is a 32-bit number for a block of the log.
//!
//! Owns: `Segments`; the lengths of segments; the translation between block indexes and places (segment and block).
//! Invariants: `live` of a segment is the number of pages of the newest state in the segment. A segment is in the table
//! as long as any block index refers to it.
//! Does not: access files.

use std::collections::BTreeMap;
use std::time::Instant;

use image::{LOG_BLOCK_BYTES, LogPlace, LogSegment};
use model::ByteCount;

use super::layout::{FIRST_BLOCK, SEGMENT_BYTES_GROWN};
use super::table::{BlockIndex, PageContent, PageTable};
use crate::error::Error;

/// The table of all segments of a log.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    pub(super) lengths: SegmentLengths,
    bits: u32,
    slots: Vec<Option<SegmentState>>,
    pub(crate) numbers: BTreeMap<LogSegment, u32>,
}

/// The lengths of uncompressed segments. Only few changes are recorded: the log seldom changes the length of its new segments.
#[derive(Clone, Debug)]
pub(super) struct SegmentLengths {
    /// Each entry is valid from this segment on. The first entry is valid for segment 0.
    from: Vec<(LogSegment, ByteCount)>,
}

/// The state of one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentState {
    pub(crate) number: LogSegment,
    /// The number of pages of the newest state in the segment.
    pub(crate) live: u32,
    /// Whether compaction is moving the pages to other segments.
    pub(crate) cleaning: bool,
    /// The state of compression; `None` if compression was not tried.
    pub(crate) compressed: Option<Compressed>,
    /// The earlier number of live pages, for the decision whether to compress the segment. `None` until the compressor
    /// has first inspected the full segment.
    pub(crate) watched: Option<Watched>,
}

/// The number of live pages in a segment at an earlier time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    pub(crate) since: Instant,
    pub(crate) live: u32,
}

/// The state of compression of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compressed {
    /// Compression is in progress.
    Begun,
    /// The segment remains uncompressed.
    Not,
    /// The segment is compressed to this size.
    To(ByteCount),
}

impl SegmentLengths {
    /// Returns the lengths of segments that all have this length.
    pub(super) fn all(length: ByteCount) -> Self {
        Self { from: vec![(LogSegment(0), length)] }
    }

    /// Sets the length of all segments from a number on. The number is not below the numbers of all earlier calls.
    pub(super) fn set_from(&mut self, number: LogSegment, length: ByteCount) {
        while self.from.len() > 1 && self.from.last().is_some_and(|(from, _)| *from >= number) {
            self.from.pop();
        }
        if self.newest() != length {
            self.from.push((number, length));
        }
    }

    /// Forgets the lengths of segments before this one.
    pub(super) fn forget_before(&mut self, number: LogSegment) {
        let kept = self.from.partition_point(|(from, _)| *from <= number).saturating_sub(1);
        self.from.drain(..kept);
        self.from.iter_mut().take(1).for_each(|(from, _)| *from = LogSegment(0));
    }

    /// Returns the length of new segments.
    pub(super) fn newest(&self) -> ByteCount {
        self.from.last().map_or(ByteCount(0), |(_, length)| *length)
    }

    /// Reports whether all segments have the same length.
    pub(super) const fn are_equal(&self) -> bool {
        self.from.len() <= 1
    }

    /// Returns the greatest length.
    pub(super) fn greatest(&self) -> ByteCount {
        self.from.iter().map(|(_, length)| *length).max().unwrap_or_default()
    }

    /// Returns the length of a segment.
    pub(super) fn of(&self, number: LogSegment) -> ByteCount {
        let place = self.from.partition_point(|(from, _)| *from <= number);
        place.checked_sub(1).map_or(ByteCount(0), |place| self.from[place].1)
    }
}

/// Returns the number of blocks for pages in a segment of this length.
pub(super) fn page_blocks(length: ByteCount) -> u64 {
    (length.get() / LOG_BLOCK_BYTES).saturating_sub(FIRST_BLOCK.into())
}

impl Segments {
    /// Creates an empty table for segments of these lengths, and for longer ones that the log may create.
    pub(crate) fn new(lengths: SegmentLengths) -> Self {
        let blocks = lengths.greatest().get().max(SEGMENT_BYTES_GROWN).div_ceil(LOG_BLOCK_BYTES);
        Self { lengths, bits: (blocks - 1).ilog2() + 1, slots: Vec::new(), numbers: BTreeMap::new() }
    }

    /// Adds a segment. Returns `None` if there are more segments than block indexes can address (262,144).
    pub(crate) fn add(&mut self, number: LogSegment) -> Option<()> {
        if self.numbers.contains_key(&number) {
            return Some(());
        }
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if ((slot as u64 + 1) << self.bits) > u64::from(BlockIndex::MAX) {
            return None;
        }
        let (live, cleaning, compressed, watched) = (0, false, None, None);
        let state = Some(SegmentState { number, live, cleaning, compressed, watched });
        match self.slots.get_mut(slot) {
            Some(free) => *free = state,
            None => self.slots.push(state),
        }
        self.numbers.insert(number, slot as u32);
        Some(())
    }

    /// Removes a segment without references.
    pub(crate) fn remove(&mut self, number: LogSegment) {
        if let Some(slot) = self.numbers.remove(&number) {
            debug_assert!(self.slots[slot as usize].is_none_or(|state| state.live == 0), "still in use");
            self.slots[slot as usize] = None;
        }
    }

    /// Returns the block index of a place. Returns `None` if the segment is not in the table.
    pub(crate) fn block_index(&self, place: LogPlace) -> Option<BlockIndex> {
        let slot = *self.numbers.get(&place.segment)?;
        (place.block >> self.bits == 0).then(|| BlockIndex::new(slot << self.bits | place.block))
    }

    /// Returns the place of a block index.
    pub(crate) fn place(&self, block_index: BlockIndex) -> LogPlace {
        let state = self.slots[self.slot_of(block_index)];
        let segment = state.map(|state| state.number).unwrap_or_default();
        debug_assert!(state.is_some(), "a block_index in a segment that is gone");
        LogPlace { segment, block: block_index.get() & ((1 << self.bits) - 1) }
    }

    /// Returns a number for the segment of a block index, which no other segment of the table has.
    pub(crate) const fn slot_of(&self, block_index: BlockIndex) -> usize {
        (block_index.get() >> self.bits) as usize
    }

    /// Returns all segments, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &SegmentState> {
        self.numbers.values().filter_map(|slot| self.slots[*slot as usize].as_ref())
    }

    /// Returns mutable references to all segments, in no particular order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SegmentState> {
        self.slots.iter_mut().flatten()
    }

    /// Returns the state of a segment.
    pub(crate) fn get_mut(&mut self, number: LogSegment) -> Option<&mut SegmentState> {
        self.slots[*self.numbers.get(&number)? as usize].as_mut()
    }

    /// Returns the size of all segments on the device.
    pub(crate) fn disk(&self) -> ByteCount {
        ByteCount(self.iter().map(|state| self.length_of(state).get()).sum())
    }

    /// Returns the size of one segment on the device.
    pub(crate) fn length(&self, number: LogSegment) -> ByteCount {
        let state = self.numbers.get(&number).and_then(|slot| self.slots[*slot as usize].as_ref());
        state.map_or(self.lengths.of(number), |state| self.length_of(state))
    }

    fn length_of(&self, state: &SegmentState) -> ByteCount {
        match state.compressed {
            Some(Compressed::To(length)) => length,
            _ => self.lengths.of(state.number),
        }
    }

    /// Returns the number of compressed segments.
    pub(crate) fn compressed(&self) -> usize {
        self.iter().filter(|state| matches!(state.compressed, Some(Compressed::To(_)))).count()
    }

    /// Counts a page that was added to the newest state.
    pub(crate) fn enter(&mut self, content: PageContent) {
        if let Some(state) = self.state_of(content) {
            state.live += 1;
        }
    }

    /// Counts a page that was removed from the newest state.
    pub(crate) fn leave(&mut self, content: PageContent) {
        if let Some(state) = self.state_of(content) {
            debug_assert!(state.live > 0, "more left than came");
            state.live -= 1;
        }
    }

    /// Sets the number of live pages of all segments to zero.
    pub(crate) fn leave_all(&mut self) {
        self.slots.iter_mut().flatten().for_each(|state| state.live = 0);
    }

    /// Counts the live pages of all segments from a page table.
    pub(crate) fn count(&mut self, table: &PageTable) {
        self.leave_all();
        table.iter().for_each(|(_, _, content)| self.enter(content));
    }

    fn state_of(&mut self, content: PageContent) -> Option<&mut SegmentState> {
        let PageContent::At(block_index, _) = content else { return None };
        let slot = self.slot_of(block_index);
        self.slots[slot].as_mut()
    }
}

/// Returns the error for a log with more segments than block indexes can address.
pub(super) fn too_long() -> Error {
    sys::Error::new("count more than 262,144 segments of a log", sys::Errno::ENOSPC).into()
}

#[cfg(test)]
mod tests {
    use image::PageChecksum;

    use super::*;

    #[test]
    fn block_indexes_and_places_convert_to_each_other_and_slots_are_reused() {
        let mut segments = Segments::new(SegmentLengths::all(ByteCount(1 << 18)));
        for number in [7, 9, 4] {
            segments.add(LogSegment(number)).unwrap();
        }
        for segment in [4, 7, 9].map(LogSegment) {
            for block in [0, 16, 63] {
                let place = LogPlace { segment, block };
                assert_eq!(segments.place(segments.block_index(place).unwrap()), place);
            }
        }
        let behind = (SEGMENT_BYTES_GROWN / LOG_BLOCK_BYTES) as u32;
        assert_eq!(segments.block_index(LogPlace { segment: LogSegment(4), block: behind }), None);
        assert_eq!(segments.block_index(LogPlace { segment: LogSegment(5), block: 0 }), None);
        segments.remove(LogSegment(9));
        segments.add(LogSegment(12)).unwrap();
        assert_eq!(segments.slots.len(), 3);
        assert_eq!(segments.iter().map(|state| state.number.0).collect::<Vec<_>>(), [4, 7, 12]);
    }

    #[test]
    fn each_segment_has_the_length_that_was_valid_at_its_creation() {
        let mut lengths = SegmentLengths::all(ByteCount(8));
        lengths.set_from(LogSegment(5), ByteCount(8));
        lengths.set_from(LogSegment(7), ByteCount(16));
        lengths.set_from(LogSegment(9), ByteCount(8));
        let found = [0, 6, 7, 8, 9, 100].map(|number| lengths.of(LogSegment(number)).get());
        assert_eq!(found, [8, 8, 16, 16, 8, 8]);
        assert_eq!((lengths.newest(), lengths.greatest()), (ByteCount(8), ByteCount(16)));
        lengths.forget_before(LogSegment(8));
        let found = [8, 9].map(|number| lengths.of(LogSegment(number)).get());
        assert_eq!((found, lengths.from.len()), ([16, 8], 2));
        lengths.set_from(LogSegment(9), ByteCount(16));
        assert!(lengths.are_equal());
        lengths.set_from(LogSegment(9), ByteCount(32));
        lengths.set_from(LogSegment(9), ByteCount(64));
        assert_eq!((lengths.of(LogSegment(8)), lengths.of(LogSegment(9))), (ByteCount(16), ByteCount(64)));
    }

    #[test]
    fn live_pages_are_counted() {
        let mut segments = Segments::new(SegmentLengths::all(ByteCount(1 << 24)));
        segments.add(LogSegment(1)).unwrap();
        let block_index = segments.block_index(LogPlace { segment: LogSegment(1), block: 100 }).unwrap();
        segments.enter(PageContent::At(block_index, PageChecksum(0)));
        segments.enter(PageContent::Zero);
        assert_eq!(segments.iter().next().unwrap().live, 1);
        segments.leave(PageContent::At(block_index, PageChecksum(0)));
        assert_eq!(segments.iter().next().unwrap().live, 0);
    }
}
