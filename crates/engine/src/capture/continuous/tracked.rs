//! One tracked process: from what its tracker reports to what the log is told.
//!
//! Owns: its tracker, the ranges that the log was told of, its guard regions, ranges whose reading failed.
//! Invariants: what is dirty is copied or taken out of the checkpoint, never forgotten; what could not be read while
//! the process ran is looked at again while it stands.
//! Does not: know how dirty pages are found.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use image::SpaceId;
use model::{Address, AddressRange, PageCount, ProcessKey};
use resource::memory::Content as Wanted;
use tracee::procfs::{Area, Backing};
use tracee::remote::RemoteContext;
use tracee::{Crew, RemoteSession, Stopped, Thread};
use track::{AHEAD_MIN, Attach, Content, DirtyPages, Moment, TrackError, Tracker};

use super::super::before::ProcessBefore;
use super::super::copier::{Copier, PageSink};
use super::hot::HotPages;
use crate::error::Result;

/// All that a process may map.
pub(super) const EVERYTHING: AddressRange =
    AddressRange { start: Address(0), end: Address(0x7fff_ffff_f000) };

/// Times a scan is made again because areas were replaced under it; the process stands for the last one.
const SCANS_MAX: usize = 4;

/// What one look for changes came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    pub(super) pages: PageCount,
    /// How long the scans took.
    pub(super) scan: Duration,
}

/// A process and its tracker.
#[derive(Debug)]
pub(super) struct Tracked {
    key: ProcessKey,
    space: SpaceId,
    tracker: Box<dyn Tracker>,
    /// What the tracker was told of, rising.
    covered: Vec<AddressRange>,
    guards: Vec<AddressRange>,
    /// Dirty ranges that could not be read while the process ran, rising.
    unread: Vec<AddressRange>,
    hot: HotPages,
    /// Pages are copied in aligned groups of so many, where that cannot take pages of a file for the process's own.
    granularity: NonZeroU64,
    /// Anonymous areas, rising.
    grouped: Vec<AddressRange>,
}

impl Tracked {
    /// Begins to track a stopped process. Nothing that the log may hold of its space counts any more.
    pub(super) fn attach(
        attach: Attach,
        process: &mut ProcessBefore,
        leader: &mut Thread<Stopped>,
        sink: &dyn PageSink,
    ) -> Result<Self> {
        sink.discard(process.space, EVERYTHING)?;
        (process.is_tracked, process.is_covered) = (true, false);
        let context =
            RemoteContext { memory: &process.memory, areas: &process.areas, gadgets: process.gadgets };
        let mut session = RemoteSession::begin_with(leader, &context, track::ROOM)?;
        let tracker = attach(&mut session)?;
        session.end()?;
        Ok(Self {
            key: process.stat.key(),
            space: process.space,
            tracker,
            covered: Vec::new(),
            guards: Vec::new(),
            unread: Vec::new(),
            hot: HotPages::new(),
            granularity: NonZeroU64::MIN,
            grouped: Vec::new(),
        })
    }

    /// Copies pages in aligned groups.
    pub(super) fn grouped(self, granularity: NonZeroU64) -> Self {
        Self { granularity, ..self }
    }

    /// Whether it tracks this very program.
    pub(super) fn is_of(&self, process: &ProcessBefore) -> bool {
        self.key == process.stat.key() && process.is_tracked
    }

    /// Does what takes long of ending to track, while the process runs.
    pub(super) fn unwind(&mut self) {
        self.tracker.unwind();
    }

    /// Ends tracking of the process, which stands.
    pub(super) fn end(&mut self) {
        self.tracker.leave();
    }

    /// The process has ended.
    pub(super) fn leave(&self, sink: &dyn PageSink) {
        // A log that takes no more orders has failed, and says so when the epoch is finished.
        let _ = sink.discard(self.space, EVERYTHING);
    }

    /// Pages of the areas that the tracker was told of.
    pub(super) fn watched(&self) -> PageCount {
        self.covered.iter().fold(PageCount(0), |sum, range| sum + range.pages())
    }

    /// Guard regions, rising.
    pub(super) fn guards(&self) -> &Vec<AddressRange> {
        &self.guards
    }

    /// Tells the tracker of the areas, and the log what is void.
    pub(super) fn cover(&mut self, process: &ProcessBefore, sink: &dyn PageSink) -> Result<()> {
        let areas: Vec<Area> = process
            .areas
            .iter()
            .zip(&process.contents)
            .filter(|(_, content)| matches!(content, Some(Wanted::Private | Wanted::PrivateAndObject)))
            .map(|(area, _)| area.clone())
            .collect();
        let mut void = self.tracker.cover(&areas)?.fresh.clone();
        let now: Vec<AddressRange> = areas.iter().map(|area| area.range).collect();
        void.extend(missing(&self.covered, &now));
        let anonymous = areas.iter().filter(|area| area.backing == Backing::Anonymous);
        self.grouped = anonymous.map(|area| area.range).collect();
        if std::mem::replace(&mut self.covered, now).is_empty() {
            // Nothing was stored; to say so all the same wakes threads.
            return Ok(());
        }
        for range in void {
            sink.discard(self.space, range)?;
            cut(&mut self.guards, range);
            cut(&mut self.unread, range);
            self.hot.forget(range);
        }
        Ok(())
    }

    /// After an epoch, while the process runs.
    pub(super) fn learn(&mut self) {
        self.hot.learn();
    }

    /// Finds what changed since the last time, and copies nothing.
    pub(super) fn look(&mut self, moment: Moment, dirty: &mut DirtyPages) -> Result<PageCount> {
        dirty.clear();
        match self.tracker.scan(moment, dirty) {
            // While it runs it may end, or be replaced by exec; the next look tells.
            Err(TrackError::Gone(_)) if moment == Moment::Running => {}
            outcome => outcome?,
        }
        Ok(dirty.pages())
    }

    /// Makes room for what a crew will find.
    pub(super) fn prepare_scan(&mut self) {
        self.tracker.prepare_scan(AHEAD_MIN);
    }

    /// Has a crew look for what changed, once it begins, while the process stands.
    pub(super) fn post_scan(&mut self, crew: &Arc<Crew>) {
        self.tracker.post_scan(crew, AHEAD_MIN);
    }

    /// Copies what changed since the last time; how many pages that were.
    pub(super) fn copy_dirty(
        &mut self,
        process: &ProcessBefore,
        moment: Moment,
        dirty: &mut DirtyPages,
        sink: &dyn PageSink,
    ) -> Result<Copied> {
        let mut copied = Copied::default();
        for _ in 0..SCANS_MAX {
            dirty.clear();
            let scanning = Instant::now();
            match self.tracker.scan(moment, dirty) {
                // While it runs it may end, or be replaced by exec; the stop tells.
                Err(TrackError::Gone(_)) if moment == Moment::Running => return Ok(copied),
                outcome => outcome?,
            }
            copied.scan += scanning.elapsed();
            dirty.widen(self.granularity, &self.grouped);
            match moment {
                // A group is not put off for one of its pages.
                Moment::Running if self.granularity == NonZeroU64::MIN => self.hot.put_off(dirty),
                Moment::Running => {}
                Moment::Stopped => self.hot.meet(dirty),
            }
            copied.pages += dirty.pages();
            if moment == Moment::Stopped {
                copied.pages += PageCount(self.hot.due().count() as u64);
            }
            self.copy(process, moment, dirty, sink)?;
            if moment == Moment::Running || dirty.replaced().is_empty() {
                break;
            }
            self.cover(process, sink)?;
        }
        if moment == Moment::Stopped {
            self.copy_unread(process, sink)?;
        }
        Ok(copied)
    }

    fn copy(
        &mut self,
        process: &ProcessBefore,
        moment: Moment,
        dirty: &DirtyPages,
        sink: &dyn PageSink,
    ) -> Result<()> {
        let mut copier = Copier::tolerant(sink, sink.buffer()?);
        let ranges = dirty.ranges();
        let is_rising = ranges.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start);
        for found in ranges {
            cut(&mut self.guards, found.range);
            if found.content.must_read() {
                copier.add(process.stat.pid, self.space, found.range)?;
                continue;
            }
            if !is_rising {
                // It may stand in the buffer already, from earlier in this very list.
                copier.flush(process.stat.pid)?;
                copier.send()?;
            }
            copier.discard(process.stat.pid, self.space, found.range)?;
            if found.content == Content::Guard {
                insert(&mut self.guards, found.range);
            }
        }
        if moment == Moment::Stopped {
            for range in self.hot.due() {
                cut(&mut self.guards, range);
                copier.add(process.stat.pid, self.space, range)?;
            }
            self.hot.paid();
        }
        copier.flush(process.stat.pid)?;
        // In order, as `cut` needs it: areas that change would else take others out of the list than those they name.
        for failed in copier.take_failed() {
            insert(&mut self.unread, failed);
        }
        copier.finish()
    }

    /// Looks at what could not be read: guard regions, pages without access, what is gone by now.
    fn copy_unread(&mut self, process: &ProcessBefore, sink: &dyn PageSink) -> Result<()> {
        if self.unread.is_empty() {
            return Ok(());
        }
        let mut copier = Copier::new(sink, sink.buffer()?);
        for range in std::mem::take(&mut self.unread) {
            copier.discard(process.stat.pid, self.space, range)?;
            for part in overlaps(&self.covered, range) {
                let found = process.pagemap.look(part)?;
                for own in found.private {
                    copier.add_hidden(&process.memory, self.space, own)?;
                }
                for guard in found.guards {
                    insert(&mut self.guards, guard);
                }
            }
        }
        copier.finish()
    }
}

/// Parts of `before` that `now` lacks; both rise.
fn missing(before: &[AddressRange], now: &[AddressRange]) -> Vec<AddressRange> {
    let mut left = before.to_vec();
    for range in now {
        cut(&mut left, *range);
    }
    left
}

/// Takes a range out of a rising list.
fn cut(list: &mut Vec<AddressRange>, range: AddressRange) {
    let first = list.partition_point(|known| known.end <= range.start);
    let last = list.partition_point(|known| known.start < range.end);
    if first >= last {
        return;
    }
    let head = AddressRange { start: list[first].start, end: range.start };
    let tail = AddressRange { start: range.end, end: list[last - 1].end };
    let rest = [head, tail].into_iter().filter(|part| part.start < part.end);
    list.splice(first..last, rest);
}

/// Adds a range to a rising list.
fn insert(list: &mut Vec<AddressRange>, range: AddressRange) {
    cut(list, range);
    let at = list.partition_point(|known| known.end <= range.start);
    list.insert(at, range);
}

/// Parts of a rising list that lie in a range.
fn overlaps(list: &[AddressRange], range: AddressRange) -> Vec<AddressRange> {
    list.iter()
        .map(|known| AddressRange { start: known.start.max(range.start), end: known.end.min(range.end) })
        .filter(|part| part.start < part.end)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start << 12), Address(end << 12))
    }

    #[test]
    fn lists_of_ranges_are_cut_and_joined() {
        let mut list = vec![range(1, 4), range(6, 9), range(12, 20)];
        cut(&mut list, range(3, 7));
        assert_eq!(list, [range(1, 3), range(7, 9), range(12, 20)]);
        cut(&mut list, range(14, 16));
        assert_eq!(list, [range(1, 3), range(7, 9), range(12, 14), range(16, 20)]);
        insert(&mut list, range(8, 13));
        assert_eq!(list, [range(1, 3), range(7, 8), range(8, 13), range(13, 14), range(16, 20)]);
        cut(&mut list, range(0, 30));
        assert!(list.is_empty());
    }

    #[test]
    fn what_could_not_be_read_in_any_order_is_taken_out_by_its_own_range_alone() {
        let mut unread = Vec::new();
        for failed in [range(40, 41), range(10, 11), range(30, 31), range(20, 21)] {
            insert(&mut unread, failed);
        }
        cut(&mut unread, range(10, 11));
        cut(&mut unread, range(28, 35));
        assert_eq!(unread, [range(20, 21), range(40, 41)]);
    }

    #[test]
    fn what_is_missing_and_what_overlaps() {
        let before = [range(1, 10), range(20, 30)];
        assert_eq!(
            missing(&before, &[range(2, 4), range(20, 25)]),
            [range(1, 2), range(4, 10), range(25, 30)]
        );
        assert_eq!(overlaps(&before, range(5, 22)), [range(5, 10), range(20, 22)]);
    }
}
