//! Tracks one process. The tracker finds the pages to which the process has written. This module copies these
//! pages into the log, or removes them from the checkpoint.
//!
//! Owns: the tracker; the mappings that the tracker knows; the guard regions of the process; the ranges that
//! could not be read.
//! Invariants: every dirty page is copied, or removed from the checkpoint. If a page cannot be read while the
//! process runs, the page is read again when the process is stopped.
//! Does not: know how dirty pages are found.

use std::num::NonZeroU64;
use std::time::Duration;

use image::SpaceId;
use model::{Address, AddressRange, PageCount, ProcessKey, RangeSet};
use resource::memory::Content as Wanted;
use sys::clock::{Deadline, Stopwatch};
use sys::pagemap::PageRegions;
use tracee::procfs::{Backing, Mapping};
use tracee::{RemoteSession, Stopped, Thread, WorkerPool};
use track::{Attach, Content, DirtyPages, Loosener, Moment, TrackError, Tracker};

use super::super::address_space::Coverage;
use super::super::copier::{Copier, PageSink};
use super::super::process::Process;
use super::super::reserve::Reserve;
use super::super::shared_pages;
use super::budget::{BUFFER_MAKING, CHUNK};
use super::deferred::Deferred;
use super::hot::HotPages;
use super::rewritten::{Looks, Rewritten};
use super::together::{Filling, Together};
use crate::error::Result;

/// All addresses at which a process can have mappings.
pub(super) const EVERYTHING: AddressRange =
    AddressRange { start: Address(0), end: Address(0x7fff_ffff_f000) };

/// Maximum number of scans in one stop. If a scan reports replaced mappings, the tracker is updated and the
/// scan is repeated.
const SCANS_MAX: usize = 4;

/// Workers help only if at least this many buffers are to be filled. For fewer, waking a worker takes too long.
const TOGETHER_MIN: u64 = 3;

/// Reports whether there is time to allocate a buffer.
fn may_make(until: Option<Deadline>) -> bool {
    until.is_none_or(|until| until.left() >= BUFFER_MAKING)
}

/// The result of one or several scans.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// The number of pages that must be copied. Pages that have become empty need no copy.
    pub(super) pages: PageCount,
    /// How long the scans took.
    pub(super) scan: Duration,
}

#[derive(Debug)]
pub(super) struct Tracked {
    key: ProcessKey,
    space: SpaceId,
    pub(super) tracker: Box<dyn Tracker>,
    /// The mappings that the tracker knows.
    pub(super) covered: RangeSet,
    pub(super) guards: RangeSet,
    /// Dirty pages that could not be read while the process ran.
    unread: RangeSet,
    /// Dirty pages that are still to be copied.
    pub(super) deferred: Deferred,
    pub(super) hot: HotPages,
    rewritten: Rewritten,
    /// Number of pages in a group. In anonymous mappings, pages are copied in aligned groups. In a mapping of
    /// a file, a group could contain pages of the file, which would be copied as private pages of the
    /// process.
    pub(super) granularity: NonZeroU64,
    /// Anonymous mappings, sorted by address.
    grouped: Vec<AddressRange>,
}

impl Tracked {
    /// Begins to track a stopped process. Removes all pages of the process from the checkpoint.
    pub(super) fn attach(
        attach: Attach,
        process: &mut Process,
        leader: &mut Thread<Stopped>,
        sink: &dyn PageSink,
    ) -> Result<Self> {
        sink.discard(process.space.id, EVERYTHING)?;
        process.space.coverage = Coverage::Outdated;
        let mut session =
            RemoteSession::begin_with(leader, &process.space.context(), track::ATTACH_CAPACITY)?;
        let tracker = attach(&mut session)?;
        session.end()?;
        Ok(Self::new(process, tracker))
    }

    fn new(process: &Process, tracker: Box<dyn Tracker>) -> Self {
        Self {
            key: process.stat.key(),
            space: process.space.id,
            tracker,
            covered: RangeSet::new(),
            guards: RangeSet::new(),
            unread: RangeSet::new(),
            deferred: Deferred::default(),
            hot: HotPages::new(),
            rewritten: Rewritten::default(),
            granularity: NonZeroU64::MIN,
            grouped: Vec::new(),
        }
    }

    /// Reports whether the tracker belongs to the present program of the process.
    pub(super) fn is_of(&self, process: &Process) -> bool {
        self.key == process.stat.key() && process.space.coverage != Coverage::Untracked
    }

    pub(super) fn remove_pages(&self, sink: &dyn PageSink) -> Result<()> {
        Ok(sink.discard(self.space, EVERYTHING)?)
    }

    /// Updates the tracker with the present mappings. Removes the pages of new mappings and of unmapped
    /// ranges from the checkpoint. Returns the number of pages in mappings that no scan has seen.
    pub(super) fn cover(&mut self, process: &Process, sink: &dyn PageSink) -> Result<PageCount> {
        let mappings: Vec<Mapping> = process
            .space
            .mappings
            .iter()
            .zip(&process.space.contents)
            .filter(|(_, content)| matches!(content, Some(Wanted::Private | Wanted::PrivateAndObject)))
            .map(|(mapping, _)| mapping.clone())
            .collect();
        let mut void = self.tracker.cover(&mappings)?.fresh.clone();
        let fresh = void.iter().fold(PageCount(0), |sum, range| sum + range.pages());
        let now: RangeSet = mappings.iter().map(|mapping| mapping.range).collect();
        void.extend(self.covered.difference(&now));
        let anonymous = mappings.iter().filter(|mapping| mapping.backing == Backing::Anonymous);
        self.grouped = anonymous.map(|mapping| mapping.range).collect();
        if std::mem::replace(&mut self.covered, now).is_empty() {
            // The log contains no page of the process yet. Removals would have no effect, but would wake
            // threads of the log.
            return Ok(fresh);
        }
        for range in void {
            sink.discard(self.space, range)?;
            self.guards.remove(range);
            self.unread.remove(range);
            self.deferred.forget(range);
            self.hot.forget(range);
        }
        Ok(fresh)
    }

    /// Finds the pages that have changed since the last scan. Returns `false` if the running process has
    /// ended, or if exec has replaced its program. The next stop handles both cases.
    pub(super) fn scan(&mut self, moment: Moment, dirty: &mut DirtyPages) -> Result<bool> {
        dirty.clear();
        match self.tracker.scan(moment, dirty) {
            Err(TrackError::Gone(_)) if moment == Moment::Running => Ok(false),
            outcome => Ok(outcome.map(|()| true)?),
        }
    }

    /// Finds the pages that have changed since the last scan, and defers their copies. Removes zero pages,
    /// absent pages and guard regions from the checkpoint.
    pub(super) fn find(
        &mut self,
        process: &Process,
        moment: Moment,
        dirty: &mut DirtyPages,
        sink: &dyn PageSink,
    ) -> Result<Found> {
        let mut found = Found::default();
        for _ in 0..SCANS_MAX {
            let scanning = Stopwatch::start();
            if !self.scan(moment, dirty)? {
                return Ok(found);
            }
            found.scan += scanning.elapsed();
            self.rewritten.note(dirty);
            dirty.widen(self.granularity, &self.grouped);
            match moment {
                // With groups, hot pages are not deferred. Otherwise one hot page would defer its whole
                // group.
                Moment::Running if self.granularity == NonZeroU64::MIN => self.hot.defer_hot(dirty),
                Moment::Running => {}
                Moment::Stopped => self.hot.note_pause(dirty),
            }
            found.pages += dirty.pages_to_read();
            self.note(dirty, sink)?;
            if moment == Moment::Running || dirty.replaced().is_empty() {
                break;
            }
            self.cover(process, sink)?;
        }
        if moment == Moment::Stopped {
            found.pages += PageCount(self.hot.due().count() as u64);
            self.hot.due().for_each(|range| self.guards.remove(range));
            self.deferred.extend(self.hot.due());
            self.hot.mark_taken();
        }
        Ok(found)
    }

    /// Ends an epoch: decides how the next epoch treats pages that are written often. Returns the blocks that are not
    /// protected until then. Must not be called inside the pause.
    pub(super) fn learn(&mut self) -> Vec<AddressRange> {
        self.hot.learn();
        let loose = self.rewritten.learn(&self.grouped);
        if !loose.is_empty()
            && let Some(loosener) = self.tracker.loosener()
        {
            loosener.loosen(&loose);
        }
        loose
    }

    /// Prepares to look for blocks that are rewritten before the next checkpoint, in the anonymous mappings that `may`
    /// selects. `loose` are blocks that are known already. Returns `None` if there is nothing to look at.
    pub(super) fn looks(
        &self,
        may: impl Fn(AddressRange) -> bool,
        loose: &[AddressRange],
    ) -> Option<(Loosener, Looks)> {
        let looks = Looks::new(self.grouped.iter().copied().filter(|mapping| may(*mapping)), loose)?;
        Some((self.tracker.loosener()?, looks))
    }

    /// Returns the number of anonymous pages that the process has written since the last scan. `None`: the tracker cannot tell
    /// without a scan.
    pub(super) fn changed(&self) -> Option<PageCount> {
        let loosener = self.tracker.loosener()?;
        let (mut pages, mut regions) = (PageCount(0), PageRegions::new());
        for mapping in &self.grouped {
            // The program may have unmapped the range.
            let _ = loosener.changed(*mapping, &mut regions, |found| pages += found.pages());
        }
        Some(pages)
    }

    fn note(&mut self, dirty: &DirtyPages, sink: &dyn PageSink) -> Result<()> {
        for found in dirty.ranges() {
            self.guards.remove(found.range);
            if !found.content.must_read() {
                sink.discard(self.space, found.range)?;
            }
            if found.content == Content::Guard {
                self.guards.insert(found.range);
            }
        }
        self.deferred.note(dirty.ranges());
        Ok(())
    }

    /// Copies deferred pages. Without `until`, copies all deferred pages. With `until`, ends at the deadline,
    /// or when no buffer is free. Returns the number of copied pages. If the process is stopped, workers can help.
    pub(super) fn copy_deferred(
        &mut self,
        process: &Process,
        moment: Moment,
        sink: &Reserve<'_>,
        until: Option<Deadline>,
        workers: Option<&WorkerPool>,
    ) -> Result<PageCount> {
        let before = self.deferred.pages;
        if let Some(workers) = workers
            && before.get() >= TOGETHER_MIN * sink.pool().buffer_pages().get()
        {
            self.copy_together(process, sink, until, workers)?;
        }
        let copied = |deferred: &Deferred| PageCount(before.get() - deferred.pages.get());
        let has_copied = self.deferred.pages < before;
        if self.deferred.pages == PageCount(0) || (has_copied && until.is_some_and(Deadline::has_passed)) {
            return Ok(copied(&self.deferred));
        }
        let first = match until {
            None => Some(sink.buffer()?),
            Some(_) if sink.has_to_make() && !may_make(until) => None,
            Some(_) => sink.free_buffer()?,
        };
        let Some(first) = first else { return Ok(copied(&self.deferred)) };
        let pid = process.stat.pid;
        let mut copier = Copier::tolerant(sink, first);
        if moment == Moment::Stopped {
            copier = copier.in_pause();
        }
        while self.deferred.pages > PageCount(0) {
            if copier.room() == PageCount(0) && sink.has_to_make() && !may_make(until) {
                break;
            }
            if !copier.make_room(until.is_none())? {
                break;
            }
            let mut room = copier.room().min(CHUNK);
            while room > PageCount(0)
                && let Some(range) = self.deferred.take(room)
            {
                copier.add(pid, &process.space, range)?;
                room = PageCount(room.get() - range.pages().get());
            }
            copier.flush(pid)?;
            if until.is_some_and(Deadline::has_passed) {
                break;
            }
        }
        // Usually, every page can be read.
        for failed in copier.take_failed() {
            self.unread.insert(failed);
        }
        copier.finish()?;
        Ok(copied(&self.deferred))
    }

    /// Copies deferred pages of a stopped process together with workers. Leaves the last pages, and pages that processes
    /// share.
    fn copy_together(
        &mut self,
        process: &Process,
        sink: &Reserve<'_>,
        until: Option<Deadline>,
        workers: &WorkerPool,
    ) -> Result<()> {
        let mut together = Together::new(workers);
        let mut shared = Vec::new();
        while self.deferred.pages >= sink.pool().buffer_pages()
            && until.is_none_or(|until| until.left() > together.needed())
        {
            let batch = match until {
                None => Some(sink.buffer()?),
                Some(_) if sink.has_to_make() && !may_make(until) => None,
                Some(_) => sink.free_buffer()?,
            };
            let Some(batch) = batch else { break };
            let mut filling = Filling::new(process.stat.pid, batch);
            while filling.room() > PageCount(0)
                && let Some(range) = self.deferred.take(filling.room())
            {
                for (part, is_shared) in
                    shared_pages::parts(&process.space, range, shared_pages::PAUSE_PAGES_MIN)
                {
                    if is_shared { shared.push(part) } else { filling.add(self.space, part) }
                }
            }
            together.add(filling);
            self.pass_on(together.take(), sink)?;
        }
        self.pass_on(together.finish()?, sink)?;
        self.deferred.extend(shared.into_iter());
        Ok(())
    }

    fn pass_on(&mut self, read: Vec<Filling>, sink: &Reserve<'_>) -> Result<()> {
        for filling in read {
            filling.failed.into_iter().for_each(|range| self.unread.insert(range));
            if filling.batch.is_empty() {
                sink.pool().put_back(filling.batch);
            } else {
                sink.append(filling.batch)?;
            }
        }
        Ok(())
    }

    /// Inspects the pages that could not be read: guard regions, pages without access, and pages that no
    /// longer exist. Copies the private pages in these ranges.
    pub(super) fn copy_unread(&mut self, process: &Process, sink: &Reserve<'_>) -> Result<()> {
        if self.unread.is_empty() {
            return Ok(());
        }
        let mut copier = Copier::new(sink, sink.buffer()?);
        for range in Vec::from(std::mem::take(&mut self.unread)) {
            copier.discard(process.stat.pid, self.space, range)?;
            for part in self.covered.within(range) {
                let found = process.space.pagemap.scan_range(part)?;
                for own in found.private {
                    copier
                        .add_with(self.space, own, |start, bytes| process.space.memory.read(start, bytes))?;
                }
                for guard in found.guards {
                    self.guards.insert(guard);
                }
            }
        }
        copier.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use model::{PAGE_BYTES, Pid};
    use store::{BufferStock, PageChange, PagePool, Waits};
    use tracee::procfs;
    use track::{Coverage as Covered, TrackerKind};

    use super::super::super::objects::Objects;
    use super::*;

    const BUFFER: PageCount = PageCount(16);
    const PAGES: u64 = 200;

    /// A tracker that is never asked.
    #[derive(Debug)]
    struct Unasked;

    impl Tracker for Unasked {
        fn kind(&self) -> &'static dyn TrackerKind {
            unreachable!("copies do not use the tracker")
        }

        fn cover(&mut self, _: &[Mapping]) -> std::result::Result<&Covered, TrackError> {
            unreachable!("copies do not use the tracker")
        }

        fn scan(&mut self, _: Moment, _: &mut DirtyPages) -> std::result::Result<(), TrackError> {
            unreachable!("copies do not use the tracker")
        }
    }

    /// A sink that discards all pages.
    struct Plenty(PagePool);

    impl PageSink for Plenty {
        fn pool(&self) -> &PagePool {
            &self.0
        }

        fn apply(&self, change: PageChange) -> store::Result<()> {
            if let PageChange::Pages(batch) = change {
                self.0.put_back(batch);
            }
            Ok(())
        }
    }

    /// The fixed part of a stop can use up the whole pause budget. Without progress in each stop, there would never be a
    /// checkpoint.
    #[test]
    fn a_stop_whose_time_is_over_copies_pages_nevertheless() {
        let own = Pid(std::process::id() as i32);
        let stat = procfs::stat(own).unwrap();
        // Reading the memory map of a process needs rights that the user of this test may not have.
        let Ok(process) = Process::inspect(own, stat, SpaceId(1), &mut Objects::default(), &HashSet::new())
        else {
            return;
        };
        let memory = vec![7_u8; (PAGES + 1) as usize * PAGE_BYTES as usize];
        let start = Address((memory.as_ptr() as u64).next_multiple_of(PAGE_BYTES));
        let range = AddressRange::new(start, Address(start.get() + PAGES * PAGE_BYTES));
        let worker_pool = WorkerPool::new(std::num::NonZeroUsize::MIN, &[]).ok();
        let plenty = Plenty(PagePool::new(4, BufferStock::new(BUFFER), Waits::Limited));
        plenty.0.prepare().unwrap();
        let passing = Reserve::passing(&plenty);
        for workers in [None, worker_pool.as_ref()] {
            let mut tracked = Tracked::new(&process, Box::new(Unasked));
            tracked.deferred.extend(std::iter::once(range));
            let over = Some(Deadline::after(Duration::ZERO));
            let mut left = PAGES;
            while left > 0 {
                let copied =
                    tracked.copy_deferred(&process, Moment::Stopped, &passing, over, workers).unwrap().get();
                assert!((1..=left).contains(&copied), "{copied} of {left} pages");
                left -= copied;
            }
            assert!(tracked.unread.is_empty());
        }
    }
}
