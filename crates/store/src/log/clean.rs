//! Compaction of a log: which segments are emptied, and how many pages one commit moves.
//!
//! Owns: the choice of segments to empty; the rate of compaction.
//! Invariants: a commit moves at most a multiple of the bytes that the epoch itself writes. A small number of moves is
//! always allowed. Only the newest checkpoint is considered. When an older checkpoint was the newest, its segments were
//! at most two and a half times as large as its content. Therefore the size of these segments remains bounded.
//! Does not: read or write pages. The background writer reads pages, and the writer thread writes pages.

use std::collections::{BTreeMap, VecDeque};

use image::LogSegment;
use sys::page_buffer::PageBuffer;

use model::{ByteCount, PAGE_BYTES};

use super::background_writer::{BackgroundWriter, Move, MoveJob};
use super::segments::{SegmentState, Segments, page_blocks};
use super::state::State;
use super::table::PageContent;
use crate::error::Result;

/// The number of pages in one job: one huge page, so that a job does not delay the creation of a segment for long.
const JOB_PAGES: usize = 512;

/// The maximum number of jobs that are queued, running or completed, each with its buffer. This number is sufficient
/// for the moves of a commit with 5,000 changed pages.
const JOBS_MAX: usize = 4;

/// The maximum number of segments that are emptied at the same time, if compaction keeps up with the program. One scan
/// of all pages finds the live pages of these segments.
const VICTIMS_MAX: usize = 8;

/// One of this number of segments is emptied, even if fewer would be enough now: the next commits need no scan then.
const VICTIMS_AHEAD: usize = 16;

/// If compaction does not keep up, one of this number of segments is emptied at the same time.
const VICTIMS_SHARE: usize = 4;

/// The number of segments above the target size before compaction starts: the active segment.
const SLACK_SEGMENTS: u64 = 1;

/// The number of pages that every commit may move, even if the epoch wrote fewer pages.
const PAGES_MIN: u64 = 64;

/// The number of pages that every commit may move while the log takes more than three times the size of the live pages:
/// all buffers of compaction. The program has released most of its memory, and may write little from now on.
const PAGES_MIN_PRESSING: u64 = (JOBS_MAX * JOB_PAGES) as u64;

/// The fill level of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fill {
    /// The number of blocks in a new segment.
    blocks: u64,
    /// The number of blocks in segments with live pages.
    used: u64,
    /// The number of live pages in these segments.
    live: u64,
    /// The number of blocks that one epoch writes.
    written: u64,
}

#[derive(Debug, Default)]
pub(super) struct Cleaner {
    queue: VecDeque<(LogSegment, Vec<Move>)>,
    pub(super) buffers: Vec<PageBuffer>,
    buffers_made: usize,
}

impl Fill {
    /// Counts the blocks and the live pages of all segments. `written` is the number of blocks that one epoch writes.
    pub(super) fn of(segments: &Segments, written: u64) -> Self {
        let mut fill = Self { blocks: page_blocks(segments.lengths.newest()), used: 0, live: 0, written };
        for state in segments.iter().filter(|state| state.live > 0) {
            fill.used += page_blocks(segments.lengths.of(state.number));
            fill.live += u64::from(state.live);
        }
        fill
    }

    /// Returns the number of blocks by which the log exceeds 2.5 times the live pages plus `SLACK_SEGMENTS`. If an epoch
    /// rewrites most pages, the target is lower: while a checkpoint is written, the log contains the segments of the
    /// checkpoint two before it, and the blocks of two epochs. Together, these must be less than the default maximum of
    /// four times the live pages. The old segments are then almost empty, so few pages are moved.
    pub(super) fn excess(&self) -> u64 {
        let beside_epochs = (7 * self.live / 2).saturating_sub(2 * self.written);
        let target = beside_epochs.clamp(5 * self.live / 4, 5 * self.live / 2);
        self.used.saturating_sub(target + SLACK_SEGMENTS * self.blocks)
    }

    /// Returns the number of pages that a commit may move if its epoch wrote `written` pages. With uniform random
    /// writes, a log of 2.5 times the size of the live pages must move an eighth of `written`. The emptiest segments are
    /// then a ninth full (M. Rosenblum and J. Ousterhout 1992). The rate increases with the excess.
    pub(super) fn quota(&self, written: u64) -> u64 {
        let excess = self.excess();
        if excess == 0 {
            return 0;
        }
        let steps = 1 + excess / (2 * self.blocks);
        let least = if excess > self.live / 2 + self.blocks { PAGES_MIN_PRESSING } else { PAGES_MIN };
        (written / 8 * steps).clamp(least, (2 * written).max(least))
    }

    /// Reports whether a commit waits for the pages that compaction reads: compaction does not keep up with the program,
    /// or the epoch is so large that the wait is short beside its own writes.
    pub(super) fn is_pressing(&self) -> bool {
        let tolerated = if 8 * self.written > self.live { 0 } else { self.live / 4 };
        self.excess() > tolerated + self.blocks
    }
}

impl Cleaner {
    /// Chooses segments to empty, if compaction is necessary and no work is queued. Chooses only segments before `end`:
    /// their pages are durable and can be read.
    pub(super) fn plan(&mut self, state: &mut State, fill: Fill, end: LogSegment) {
        if fill.excess() == 0 || !self.queue.is_empty() {
            return;
        }
        let mut candidates: Vec<SegmentState> = state.segments.iter().copied().collect();
        candidates.retain(|state| state.live > 0 && !state.cleaning && state.number < end);
        candidates.sort_unstable_by_key(|state| (state.live, state.number));
        let (mut moves, mut freed): (BTreeMap<LogSegment, Vec<Move>>, u64) = (BTreeMap::new(), 0);
        let mut is_victim: Vec<bool> = Vec::new();
        let victims = if fill.is_pressing() { candidates.len() / VICTIMS_SHARE } else { 0 };
        let ahead = candidates.len() / VICTIMS_AHEAD;
        for victim in candidates.into_iter().take(victims.max(VICTIMS_MAX)) {
            let blocks = page_blocks(state.segments.lengths.of(victim.number));
            let gain = blocks.saturating_sub(u64::from(victim.live));
            // Moving the pages of an almost full segment frees little space for many written bytes.
            if gain < blocks / 8 || freed > fill.excess() && moves.len() >= ahead {
                break;
            }
            freed += gain;
            state.segments.get_mut(victim.number).into_iter().for_each(|segment| segment.cleaning = true);
            moves.insert(victim.number, Vec::with_capacity(victim.live as usize));
            if let Some(slot) = state.segments.numbers.get(&victim.number) {
                is_victim.resize(is_victim.len().max(*slot as usize + 1), false);
                is_victim[*slot as usize] = true;
            }
        }
        if moves.is_empty() {
            return;
        }
        state.pages.for_each(|space, page, content| {
            let PageContent::At(block_index, checksum) = content else { return };
            // Most pages are in other segments.
            if is_victim.get(state.segments.slot_of(block_index)) != Some(&true) {
                return;
            }
            let place = state.segments.place(block_index);
            if let Some(moves) = moves.get_mut(&place.segment) {
                moves.push(Move { space, page, block_index, block: place.block, checksum });
            }
        });
        for (segment, mut moves) in moves {
            moves.sort_unstable_by_key(|moved| moved.block);
            self.queue.extend(moves.chunks(JOB_PAGES).map(|part| (segment, part.to_vec())));
        }
    }

    /// Reports whether jobs are queued.
    pub(super) fn has_jobs(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Passes queued jobs to the background writer, as long as buffers are available.
    pub(super) fn feed(&mut self, background_writer: &mut BackgroundWriter) -> Result<()> {
        while background_writer.reading < JOBS_MAX && !self.queue.is_empty() {
            let buffer = match self.buffers.pop() {
                Some(buffer) => buffer,
                None if self.buffers_made < JOBS_MAX => {
                    self.buffers_made += 1;
                    PageBuffer::new(ByteCount(JOB_PAGES as u64 * PAGE_BYTES))?
                }
                None => return Ok(()),
            };
            if let Some((segment, moves)) = self.queue.pop_front() {
                background_writer.read(MoveJob { segment, moves, buffer });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_follows_the_excess_and_stays_a_share_of_the_epoch() {
        let fill =
            |used: u64, live: u64| Fill { blocks: 4096, used: used * 4096, live: live * 4096, written: 0 };
        assert_eq!(fill(8, 4).excess(), 0);
        assert_eq!(fill(11, 4).excess(), 0);
        assert_eq!(fill(12, 4).excess(), 4096);
        assert_eq!(fill(8, 4).quota(1000), 0);
        assert_eq!(fill(12, 4).quota(1000), 125);
        assert_eq!(fill(12, 4).quota(0), PAGES_MIN);
        assert_eq!(fill(100, 4).quota(10_000), 20_000, "never more than twice the epoch");
        assert_eq!(fill(100, 4).quota(0), PAGES_MIN_PRESSING);
        let all_rewritten = Fill { written: 9 * 512, ..fill(9, 4) };
        assert_eq!(all_rewritten.excess(), 0);
        let all_rewritten = Fill { written: 4 * 4608, ..fill(9, 4) };
        assert_eq!(all_rewritten.excess(), 3 * 4096, "two epochs leave five segments for the older ones");
    }
}
