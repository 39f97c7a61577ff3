//! The cleaner of a log: which segments are emptied, and how much of this work one commit does.
//!
//! Owns: the choice of victims, the pace.
//! Invariants: moved bytes are bounded by a share of the bytes of the epoch itself, except for a small share that is
//! always allowed. Only the newest checkpoint is considered. When an older checkpoint was the newest, its segments were
//! at most twice as large as its content, so it keeps no more than that.
//! Does not: read or write pages; the background writer reads, the writer thread writes.

use std::collections::{BTreeMap, VecDeque};

use image::LogSegment;
use sys::page_buffer::PageBuffer;

use model::{ByteCount, PAGE_BYTES};

use super::background_writer::{BackgroundWriter, Move, MoveJob};
use super::segments::{SegmentState, Segments};
use super::state::State;
use super::table::Cell;
use crate::error::Result;

/// Pages of one job: 1 MiB, so that a job never keeps the background writer long from making a segment.
const JOB_PAGES: usize = 256;

/// Jobs under way or waiting to be taken, each with its buffer; what a commit of 5,000 dirty pages moves.
const JOBS_MAX: usize = 8;

/// Segments emptied at a time; their pages are found with one walk over all pages.
const VICTIMS_MAX: usize = 8;

/// Segments above the target before anything is moved: the one being written, and those made ahead.
const SLACK_SEGMENTS: u64 = 3;

/// Pages that a commit may move however little the epoch wrote.
const PAGES_MIN: u64 = 64;

/// How full the log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fill {
    /// Blocks of a segment.
    blocks: u64,
    /// Blocks of segments that hold live pages.
    used: u64,
    /// Live pages in those.
    live: u64,
}

#[derive(Debug, Default)]
pub(super) struct Cleaner {
    queue: VecDeque<(LogSegment, Vec<Move>)>,
    pub(super) buffers: Vec<PageBuffer>,
    buffers_made: usize,
}

impl Fill {
    /// Counts.
    pub(super) fn of(segments: &Segments) -> Self {
        let mut fill = Self { blocks: segments.blocks, used: 0, live: 0 };
        for state in segments.iter().filter(|state| state.live > 0) {
            fill.used += fill.blocks;
            fill.live += u64::from(state.live);
        }
        fill
    }

    /// Blocks beyond twice what lives, and a little slack.
    pub(super) const fn excess(&self) -> u64 {
        self.used.saturating_sub(2 * self.live + SLACK_SEGMENTS * self.blocks)
    }

    /// Pages that the commit of an epoch which wrote so many may move. Where every page is as likely to be
    /// written as any other, a log twice as long as what lives needs a quarter (M. Rosenblum and J. Ousterhout
    /// 1992; the emptiest segments are a fifth full then); the pace rises with the excess.
    pub(super) fn quota(&self, written: u64) -> u64 {
        let excess = self.excess();
        if excess == 0 {
            return 0;
        }
        let steps = 1 + excess / (2 * self.blocks);
        (written / 4 * steps).clamp(PAGES_MIN, (2 * written).max(PAGES_MIN))
    }
}

impl Cleaner {
    /// Chooses segments to empty, where there is need and nothing is planned yet; not the active one.
    pub(super) fn plan(&mut self, state: &mut State, active: Option<LogSegment>) {
        let fill = Fill::of(&state.segments);
        if fill.excess() == 0 || !self.queue.is_empty() {
            return;
        }
        let mut candidates: Vec<SegmentState> = state.segments.iter().copied().collect();
        candidates.retain(|state| state.live > 0 && !state.cleaning && Some(state.number) != active);
        candidates.sort_unstable_by_key(|state| (state.live, state.number));
        let (mut moves, mut freed): (BTreeMap<LogSegment, Vec<Move>>, u64) = (BTreeMap::new(), 0);
        for victim in candidates.into_iter().take(VICTIMS_MAX) {
            let gain = fill.blocks.saturating_sub(u64::from(victim.live));
            // Moving a segment that is nearly full frees next to nothing for all its bytes.
            if gain < fill.blocks / 8 || freed > fill.excess() {
                break;
            }
            freed += gain;
            state.segments.get_mut(victim.number).into_iter().for_each(|segment| segment.cleaning = true);
            moves.insert(victim.number, Vec::with_capacity(victim.live as usize));
        }
        if moves.is_empty() {
            return;
        }
        for (space, page, cell) in state.pages.iter() {
            let Cell::At(block_index, checksum) = cell else { continue };
            let place = state.segments.place(block_index);
            if let Some(moves) = moves.get_mut(&place.segment) {
                moves.push(Move { space, page, block_index, block: place.block, checksum });
            }
        }
        for (segment, mut moves) in moves {
            moves.sort_unstable_by_key(|moved| moved.block);
            self.queue.extend(moves.chunks(JOB_PAGES).map(|part| (segment, part.to_vec())));
        }
    }

    /// Keeps the background writer busy with what is planned.
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
        let fill = |used: u64, live: u64| Fill { blocks: 4096, used: used * 4096, live: live * 4096 };
        assert_eq!(fill(10, 4).excess(), 0);
        assert_eq!(fill(11, 4).excess(), 0);
        assert_eq!(fill(12, 4).excess(), 4096);
        assert_eq!(fill(10, 4).quota(1000), 0);
        assert_eq!(fill(12, 4).quota(1000), 250);
        assert_eq!(fill(12, 4).quota(0), PAGES_MIN);
        assert_eq!(fill(100, 4).quota(1000), 2000, "never more than twice the epoch");
    }
}
