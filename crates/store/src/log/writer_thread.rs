//! The writer thread of a log. The thread takes orders (messages) from the queue, appends pages to the log, and
//! commits epochs (checkpoints in progress).
//!
//! Owns: the sequence of the steps of an epoch: append, commit, sync, completion of the ticket.
//! Invariants: a ticket is completed successfully only after all data of its checkpoint is durable. A segment is
//! removed only after a commit that does not need the segment is durable.
//! Does not: copy from a subject.

use std::sync::Arc;
use std::time::Duration;

use image::{Blob, LOG_BLOCK_BYTES, LogId, LogPlace, LogSegment, LogSlot};
use model::{ByteCount, PAGE_BYTES, PageCount, Sequence};
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

use super::active_segment::{ActiveSegment, Owner};
use super::clean::{Cleaner, Fill};
use super::compression::Compressor;
use super::delta::Delta;
use super::queue::{Order, Promise, Shared};
use super::segments::{Compressed, Segments, too_long};
use super::space::{self, Retention};
use super::state::{Parts, State};
use super::table::{BlockIndex, PageContent};
use super::ticket::{LogCommitted, LogStatus};
use crate::batch::{PageBatch, PageChange};
use crate::error::{Error, Result};
use crate::lock::locked;
use crate::meta::WriteTimings;
use crate::packer::{Packed, pack};
use crate::reuse::{self, Allowance, Place, Unused};
use crate::scheduler::Urgency;
use crate::threads::OnPanic;

/// One of this number of blocks in an epoch may contain a wasted copy.
const WASTED_SHARE: u64 = 64;

/// An epoch whose pages are being copied.
#[derive(Debug)]
pub(super) struct OpenEpoch {
    pub(super) sequence: Sequence,
    pub(super) delta: Delta,
    /// The segment that was active when the epoch began. All pages of the epoch are in this segment or in segments
    /// with higher numbers. While the epoch is open, these segments are not removed.
    pub(super) first: LogSegment,
    /// The end of the log when the epoch began. While the epoch is open, no slot says that later blocks are durable,
    /// because the epoch can write its blocks again.
    start: LogPlace,
    /// The number of bytes in the log when the epoch began.
    pub(super) begun_at: u64,
    pub(super) pages_written: u64,
    /// Blocks of the epoch that no page uses any more.
    unused: Unused<LogPlace>,
    /// Whether the log has reached its maximum size. All unused blocks are then written again.
    pub(super) is_tight: bool,
    pub(super) timings: WriteTimings,
}

#[derive(Debug)]
pub(super) struct WriterThread {
    pub(super) shared: Arc<Shared>,
    pub(super) active_segment: ActiveSegment,
    pub(super) stamp: SlotStamp,
    pub(super) state: State,
    pub(super) parts: Parts,
    pub(super) retention: Retention,
    pub(super) epoch: Option<OpenEpoch>,
    /// Reused memory for the list of pages in the current batch.
    pub(super) packed: Packed,
    pub(super) cleaner: Cleaner,
    /// The compressor of old segments; `None` if compression is disabled.
    pub(super) compression: Option<Compressor>,
    pub(super) pending: Vec<Pending>,
    pub(super) status: LogStatus,
}

/// A checkpoint that is written, but not yet synced.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) promise: Promise,
    /// The result of the checkpoint, without the duration of the sync.
    pub(super) written: LogCommitted,
    /// The time since the call of `OpenCheckpoint::commit`.
    pub(super) begun: Stopwatch,
}

/// The fields of a slot that do not depend on the checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotStamp {
    pub(super) log: LogId,
    /// The generation of the last written slot.
    pub(super) generation: u64,
    /// All data of the log before this place is durable.
    pub(super) durable: LogPlace,
}

impl OpenEpoch {
    /// Returns the number of blocks that contain pages of the epoch.
    pub(super) fn pages_used(&self) -> u64 {
        self.pages_written.saturating_sub(self.unused.len())
    }
}

impl Place for LogPlace {
    fn is_before(self, next: Self) -> bool {
        (self.segment, self.block + 1) == (next.segment, next.block)
    }
}

/// Returns the place of a stored page.
fn place_of(segments: &Segments, content: PageContent) -> Option<LogPlace> {
    match content {
        PageContent::Zero => None,
        PageContent::At(index, _) => Some(segments.place(index)),
    }
}

impl Pending {
    /// Completes the ticket. `sync` is the duration of the sync.
    fn settle(self, sync: Duration) {
        let mut committed = self.written;
        committed.timings.write += sync;
        committed.timings.commit = self.begun.elapsed();
        self.promise.answer(Ok(committed));
    }
}

impl WriterThread {
    /// Processes the queued orders, and waits for the writes.
    pub(super) fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        let _guard = OnPanic(|| shared.fail(&Error::panicked()));
        // `drive` has already reported the error to every ticket and to the queue.
        let _ = self.drive();
    }

    /// Processes the queued orders in the calling thread, and waits for the writes.
    pub(super) fn drive(&mut self) -> Result<()> {
        let _working = self.shared.io.scheduler().work();
        loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.fail(&error);
                    return Err(error);
                }
            }
        }
    }

    /// Takes back written buffers, and processes one order or waits for one write. Returns false if the queue is
    /// empty, and no write is in flight.
    fn turn(&mut self) -> Result<bool> {
        self.collect()?;
        let Some(order) = self.shared.next() else {
            // A copier may be waiting for a free buffer. A completed write frees a buffer.
            return self.active_segment.wait();
        };
        match order {
            Order::Begin { sequence, full } => self.begin(sequence, full),
            Order::Change(PageChange::Pages(batch)) => self.append(batch)?,
            Order::Change(PageChange::Discard(space, range)) => {
                if let Some(epoch) = &mut self.epoch {
                    let end = range.end.get().div_ceil(PAGE_BYTES);
                    let segments = &self.state.segments;
                    let OpenEpoch { delta, unused, .. } = epoch;
                    delta.drop_range(space, range.start.get() / PAGE_BYTES..end, |content| {
                        unused.add(place_of(segments, content));
                    });
                }
            }
            // The next root (checkpoint description) will not name the invalidated checkpoints. After the commit of
            // this root, the segments of the invalidated checkpoints are removed.
            Order::Void(above) => self.retention.void_above(above),
            Order::Fit => {
                let written = self.retention.newest.as_ref().map(|newest| newest.1).unwrap_or_default();
                self.fit(self.expected(written))?;
            }
            Order::Abandon => self.epoch = None,
            Order::Finish(finish) => {
                self.commit(*finish)?;
                // `settle` syncs. While further `Finish` orders are queued, the sync is delayed, so that one sync
                // covers all queued epochs.
                if locked(&self.shared.state).finishes == 0 {
                    self.settle()?;
                }
            }
        }
        Ok(true)
    }

    pub(super) fn begin(&mut self, sequence: Sequence, full: bool) {
        let place = self.active_segment.place();
        let first = place.map_or(LogSegment(0), |place| place.segment);
        let start = place.unwrap_or(self.stamp.durable);
        let delta = if full { Delta::full() } else { Delta::default() };
        self.epoch = Some(OpenEpoch {
            sequence,
            delta,
            first,
            start,
            begun_at: self.active_segment.written,
            pages_written: 0,
            unused: Unused::default(),
            is_tight: false,
            timings: WriteTimings::default(),
        });
    }

    /// Writes a batch of pages of the open epoch.
    pub(super) fn append(&mut self, batch: PageBatch) -> Result<()> {
        let shared = &self.shared;
        shared.io.give_way(Urgency::Precopy, || shared.pool.is_hurried());
        self.make_room(batch.filled().get())?;
        let (mut buffer, pieces) = self.shared.pool.parts_of(batch);
        let Some(mut epoch) = self.epoch.take() else {
            self.shared.pool.give(buffer);
            return Ok(());
        };
        let mut took = Stopwatch::start();
        let mut packed = std::mem::take(&mut self.packed);
        pack(&mut buffer, &pieces, &mut packed);
        self.shared.pool.give_pieces(pieces);
        epoch.timings.hash += took.lap();
        self.reuse_places(&mut epoch, &mut buffer, &mut packed)?;
        epoch.pages_written += u64::from(packed.stored);
        let places = self.append_packed(buffer, Owner::Pool, packed.stored);
        epoch.timings.write += took.lap();
        let places = places?;
        let mut number = 0;
        epoch.delta.set_all(packed.pages.iter().map(|(space, page, checksum)| {
            let content = checksum
                .map_or(PageContent::Zero, |checksum| PageContent::At(places.block_index(number), checksum));
            number += u32::from(checksum.is_some());
            (*space, *page, content)
        }));
        self.packed = packed;
        self.epoch = Some(epoch);
        Ok(())
    }

    /// Writes packed pages to unused blocks of the open epoch, and removes these pages from the buffer. No root refers to
    /// these blocks, and no slot says that they are durable.
    fn reuse_places(
        &mut self,
        epoch: &mut OpenEpoch,
        buffer: &mut PageBuffer,
        packed: &mut Packed,
    ) -> Result<()> {
        let (segments, active, durable) = (&self.state.segments, &self.active_segment, self.stamp.durable);
        let is_free = |place: LogPlace| place >= durable && active.can_rewrite(place);
        let earlier =
            |space, page| epoch.delta.pages.get(space, page).and_then(|content| place_of(segments, content));
        let all = epoch.pages_written;
        let choosable = |space, page| earlier(space, page).filter(|place| is_free(*place));
        let pages = if epoch.is_tight { 0 } else { self.active_segment.wasted_max.get() };
        let allowance = Allowance { pages, share: WASTED_SHARE };
        let runs = epoch.unused.choose(packed, all, allowance, choosable, is_free);
        for run in &runs {
            let indexes: Option<Vec<BlockIndex>> =
                run.places.iter().map(|place| self.state.segments.block_index(*place)).collect();
            self.active_segment.rewrite(run.bytes(buffer), run.places[0])?;
            for (number, (index, checksum)) in
                indexes.ok_or_else(too_long)?.into_iter().zip(&run.checksums).enumerate()
            {
                epoch.delta.set(run.space, run.page + number as u64, PageContent::At(index, *checksum));
            }
        }
        self.status.reused.0 += runs.iter().map(|run| run.places.len() as u64).sum::<u64>();
        reuse::remove(buffer, packed, &runs);
        Ok(())
    }

    /// Appends the first `count` blocks of a buffer to the log, and returns the places of these blocks.
    pub(super) fn append_packed(&mut self, buffer: PageBuffer, owner: Owner, count: u32) -> Result<Places> {
        let mut places = Places::default();
        if count == 0 {
            self.give_back(owner, buffer);
            return Ok(places);
        }
        let segments = &mut self.state.segments;
        let mut is_full = false;
        self.active_segment.append(buffer, owner, count, |from, part, place| {
            match segments.add(place.segment).and_then(|()| segments.block_index(place)) {
                Some(block_index) => places.0.push((from, part, block_index)),
                None => is_full = true,
            }
        })?;
        if is_full { Err(too_long()) } else { Ok(places) }
    }

    /// Syncs the log, completes the tickets of all pending epochs, removes unneeded segments, and plans compaction
    /// and compression.
    pub(super) fn settle(&mut self) -> Result<()> {
        let took = Stopwatch::start();
        self.active_segment.sync(self.epoch.as_ref().map(|epoch| epoch.first))?;
        self.collect()?;
        self.status.syncs += 1;
        // The status is that of the last sync.
        let written = ByteCount(self.active_segment.written - self.status.written.get());
        self.shared.io.scheduler().note_durable(written);
        let took = took.elapsed();
        let end = self.active_segment.place().unwrap_or(self.stamp.durable);
        self.stamp.durable = self.epoch.as_ref().map_or(end, |epoch| epoch.start);
        let idle = locked(&self.shared.state).queue.is_empty();
        self.note_compressed();
        self.release();
        self.adapt_segments();
        self.limit_ahead();
        self.report();
        for pending in std::mem::take(&mut self.pending) {
            pending.settle(took);
        }
        if idle {
            self.seal()?;
        }
        self.plan()
    }

    /// Writes a second slot for the newest commit. This slot records that the data of the commit is durable, so a
    /// reader need not verify the pages. This write is not synced: without the second slot, a reader verifies the
    /// pages.
    fn seal(&mut self) -> Result<()> {
        let Some(newest) = self.retention.entries().next_back() else { return Ok(()) };
        self.slot(newest.sequence, newest.root.clone())
    }

    /// Writes a slot that publishes a checkpoint.
    pub(super) fn slot(&mut self, sequence: Sequence, root: Blob) -> Result<()> {
        let directory = self.active_segment.directory.clone();
        self.active_segment.slot(|segment| {
            self.stamp.generation += 1;
            let SlotStamp { log, generation, durable } = self.stamp;
            let slot = LogSlot { log, segment, generation, sequence, durable, root };
            slot.encode().map_err(|error| Error::encoding(&directory, error))
        })
    }

    /// Removes the segments that neither a kept checkpoint nor the open epoch needs.
    fn release(&mut self) {
        let live = space::live(&self.retention.kept, self.active_segment.place().map(|place| place.segment));
        let open = self.epoch.as_ref().map(|epoch| epoch.first);
        let dead = |number: &LogSegment| !live.contains(number) && open.is_none_or(|open| *number < open);
        let segments = &mut self.state.segments;
        let gone: Vec<LogSegment> = segments.iter().map(|state| state.number).filter(dead).collect();
        let size = gone.iter().map(|number| segments.length(*number).get()).sum();
        gone.iter().for_each(|number| segments.remove(*number));
        self.active_segment.background_writer.remove(gone, ByteCount(size));
    }

    /// Chooses the next pages for compaction and the next segments for compression. Requests the reading of the
    /// pages for compaction.
    fn plan(&mut self) -> Result<()> {
        let active = self.active_segment.place().map(|place| place.segment);
        let written = self.retention.newest.as_ref().map_or(0, |newest| newest.1.get() / LOG_BLOCK_BYTES);
        let fill = Fill::of(&self.state.segments, written);
        self.cleaner.plan(&mut self.state, fill, self.stamp.durable.segment);
        if let (Some(compression), Some(active)) = (&mut self.compression, active) {
            // The open epoch can write its blocks again.
            let end = self.epoch.as_ref().map_or(active, |epoch| active.min(epoch.first));
            compression.plan(&mut self.state.segments, end);
        }
        self.cleaner.feed(&mut self.active_segment.background_writer)
    }

    /// Records the results of finished compressions.
    fn note_compressed(&mut self) {
        let Some(compression) = &mut self.compression else { return };
        while let Some((number, length)) = compression.take_done() {
            match self.state.segments.get_mut(number) {
                Some(state) => state.compressed = Some(length.map_or(Compressed::Not, Compressed::To)),
                // The segment was removed during the compression, so the compressed file is removed too.
                None => {
                    let size = self.state.segments.lengths.of(number);
                    self.active_segment.background_writer.remove(vec![number], size);
                }
            }
        }
    }

    /// Publishes the status of the log.
    pub(super) fn report(&mut self) {
        let (pages, segments) = (&self.state.pages, &self.state.segments);
        self.status.kept = self.retention.entries().map(|entry| entry.sequence).collect();
        self.status.pages = PageCount(pages.pages);
        self.status.stored = PageCount(pages.stored);
        self.status.segments = segments.numbers.len();
        self.status.disk = segments.disk();
        self.status.compressed = segments.compressed();
        self.status.newest_written =
            self.retention.newest.as_ref().map(|newest| newest.1).unwrap_or_default();
        self.status.written = ByteCount(self.active_segment.written);
        let room = self.room();
        let mut shared = locked(&self.shared.state);
        self.status.clone_into(&mut shared.status);
        shared.room = room;
    }

    pub(super) fn collect(&mut self) -> Result<()> {
        self.active_segment.collect()?;
        while let Some((owner, buffer)) = self.active_segment.returned.pop() {
            self.give_back(owner, buffer);
        }
        Ok(())
    }

    fn give_back(&mut self, owner: Owner, mut buffer: PageBuffer) {
        match owner {
            Owner::Cleaner => {
                buffer.count_use();
                self.cleaner.buffers.push(buffer);
            }
            _ => self.shared.pool.give(buffer),
        }
    }

    fn fail(&mut self, error: &Error) {
        for pending in std::mem::take(&mut self.pending) {
            pending.promise.answer(Err(error.clone()));
        }
        self.shared.fail(error);
    }
}

/// The places in the log where the blocks of one buffer are stored. Each entry is a range: first block in the
/// buffer, number of blocks, block index of the first block.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<(u32, u32, BlockIndex)>);

impl Places {
    /// Returns the block index of block `number` of the buffer.
    pub(super) fn block_index(&self, number: u32) -> BlockIndex {
        let found = self.0.iter().find(|(from, count, _)| (*from..from + count).contains(&number));
        let (from, _, block_index) = found.copied().unwrap_or((0, 0, BlockIndex::new(0)));
        debug_assert!(found.is_some(), "every block that was appended has its place");
        BlockIndex::new(block_index.get() + (number - from))
    }
}
