//! The writer's thread: takes orders, appends pages, commits epochs.
//!
//! Owns: the newest state, what is kept, the order in which a commit's bytes are written and synced.
//! Invariants: a ticket is answered with success only after everything that its checkpoint refers to is
//! durable; a segment is removed only after a commit that does not need it is durable.
//! Does not: copy from a subject.

use std::sync::Arc;
use std::time::{Duration, Instant};

use image::{LogId, LogPlace, LogSegment, LogSlot};
use model::{ByteCount, PAGE_BYTES, PageCount, Sequence};
use sys::Errno;

use super::clean::{Cleaner, Fill};
use super::cold::Cold;
use super::delta::Delta;
use super::index::Parts;
use super::keep::Keep;
use super::pending::Pending;
use super::queue::{Next, Order, Shared};
use super::records::RecordMap;
use super::segments::{Compressed, Segments};
use super::space::{self, Kept};
use super::status::LogStatus;
use super::table::{Cell, PageTable};
use super::tail::{Owner, Tail};
use crate::batch::PageBatch;
use crate::error::{Error, Result};
use crate::packer::{Packed, pack};

/// An epoch that is being copied.
#[derive(Debug)]
pub(super) struct OpenEpoch {
    pub(super) sequence: Sequence,
    pub(super) delta: Delta,
    /// The segment that its first page may be in; nothing from there on is removed.
    pub(super) first: LogSegment,
    /// Bytes in the log when it began.
    pub(super) begun_at: u64,
    pub(super) pages_written: u64,
    pub(super) hash: Duration,
    pub(super) write: Duration,
}

#[derive(Debug)]
pub(super) struct Scribe {
    pub(super) shared: Arc<Shared>,
    pub(super) tail: Tail,
    pub(super) log: LogId,
    pub(super) keep: Keep,
    pub(super) blocks: u64,
    pub(super) pages: PageTable,
    pub(super) segments: Segments,
    pub(super) records: RecordMap,
    pub(super) parts: Parts,
    pub(super) kept: Vec<Kept>,
    pub(super) epoch: Option<OpenEpoch>,
    pub(super) cleaner: Cleaner,
    /// Without it, nothing is compressed any more.
    pub(super) cold: Option<Cold>,
    pub(super) generation: u64,
    /// Everything before this place is durable.
    pub(super) durable: LogPlace,
    pub(super) pending: Vec<Pending>,
    pub(super) status: LogStatus,
    pub(super) packed: Packed,
}

impl Scribe {
    /// Carries out orders until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _guard = FailOnPanic { shared: Arc::clone(&shared) };
        loop {
            match self.turn(true) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.fail(&error);
                    break;
                }
            }
        }
        self.tail.finish();
    }

    /// Carries out what is waiting now, without a thread.
    pub(super) fn drive(&mut self) -> Result<()> {
        let result = loop {
            match self.turn(false) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        result.inspect_err(|error| self.fail(error))
    }

    /// Carries out one order, and what is due then. False when there is none.
    fn turn(&mut self, wait: bool) -> Result<bool> {
        self.collect()?;
        let order = match self.shared.next(false) {
            Next::Order(order) => order,
            // Buffers must come back even when nothing more is ordered: a copier may be waiting for one.
            Next::Nothing if self.tail.wait()? => return Ok(true),
            Next::Nothing => match self.shared.next(wait) {
                Next::Order(order) => order,
                Next::Nothing => return Ok(false),
            },
        };
        match order {
            Order::Begin { sequence, full } => self.begin(sequence, full)?,
            Order::Pages(batch) => self.append(batch)?,
            Order::Drop(space, range) => {
                if let Some(epoch) = &mut self.epoch {
                    let end = range.end.get().div_ceil(PAGE_BYTES);
                    epoch.delta.drop_range(space, range.start.get() / PAGE_BYTES..end);
                }
            }
            // Their segments go after the next commit, whose root no longer names them.
            Order::Void(above) => self.kept.retain(|kept| kept.entry.sequence <= above),
            Order::Abandon => self.epoch = None,
            Order::Finish(finish) => {
                self.commit(*finish)?;
                // One sync covers all that are waiting whole.
                if !self.shared.another_waits() {
                    self.settle()?;
                }
            }
        }
        Ok(true)
    }

    pub(super) fn begin(&mut self, sequence: Sequence, full: bool) -> Result<()> {
        let first = self.tail.place().map_or(LogSegment(0), |place| place.segment);
        let delta = if full { Delta::full() } else { Delta::default() };
        self.epoch = Some(OpenEpoch {
            sequence,
            delta,
            first,
            begun_at: self.tail.written(),
            pages_written: 0,
            hash: Duration::ZERO,
            write: Duration::ZERO,
        });
        Ok(())
    }

    /// Writes a batch of the open epoch.
    pub(super) fn append(&mut self, batch: PageBatch) -> Result<()> {
        let (mut buffer, pieces) = batch.into_parts();
        let Some(mut epoch) = self.epoch.take() else {
            self.shared.give_buffer(buffer);
            return Ok(());
        };
        let begun = Instant::now();
        let mut packed = std::mem::take(&mut self.packed);
        pack(&mut buffer, &pieces, &mut packed);
        self.shared.give_pieces(pieces);
        let hashed = Instant::now();
        epoch.hash += hashed - begun;
        epoch.pages_written += u64::from(packed.stored());
        let places = self.append_packed(buffer, Owner::Pool, packed.stored());
        epoch.write += hashed.elapsed();
        let places = places?;
        packed.enter(|space, page, found| {
            let cell = match found {
                None => Cell::Zero,
                Some((number, checksum)) => Cell::At(places.spot(number), checksum),
            };
            epoch.delta.set(space, page, cell);
        });
        self.packed = packed;
        self.epoch = Some(epoch);
        Ok(())
    }

    /// Appends the first blocks of a buffer; where each went.
    pub(super) fn append_packed(
        &mut self,
        buffer: sys::page_buffer::PageBuffer,
        owner: Owner,
        count: u32,
    ) -> Result<Places> {
        let mut places = Places::default();
        if count == 0 {
            match owner {
                Owner::Cleaner => self.cleaner.give(buffer),
                _ => self.shared.give_buffer(buffer),
            }
            return Ok(places);
        }
        let segments = &mut self.segments;
        let mut full = false;
        self.tail.append(buffer, owner, count, |from, part, place| {
            full |= segments.add(place.segment).is_none();
            if let Some(spot) = segments.spot(place) {
                places.0.push((from, part, spot));
            }
        })?;
        if full {
            return Err(sys::Error::new("count a log of more than 16 TiB", Errno::ENOSPC).into());
        }
        Ok(places)
    }

    /// Syncs what was committed and answers the tickets; then what is due after a commit.
    pub(super) fn settle(&mut self) -> Result<()> {
        let begun = Instant::now();
        self.tail.sync()?;
        self.collect()?;
        self.status.syncs += 1;
        let took = begun.elapsed();
        self.durable = self.tail.place().unwrap_or(self.durable);
        let idle = self.shared.is_idle();
        self.note_compressed();
        self.release();
        self.report();
        for pending in std::mem::take(&mut self.pending) {
            pending.settle(took);
        }
        if idle {
            self.seal()?;
        }
        self.plan()
    }

    /// Writes down that the newest commit is durable, so that nobody has to check its pages. Nothing waits
    /// for it, and nothing depends on it.
    fn seal(&mut self) -> Result<()> {
        let Some(newest) = self.kept.last().map(|kept| kept.entry.clone()) else { return Ok(()) };
        self.slot(newest.sequence, newest.root)
    }

    /// Writes a slot for a checkpoint.
    pub(super) fn slot(&mut self, sequence: Sequence, root: image::Blob) -> Result<()> {
        self.generation += 1;
        let (log, generation, durable) = (self.log, self.generation, self.durable);
        let directory = self.tail.directory().to_path_buf();
        self.tail.slot(|segment| {
            let slot = LogSlot { log, segment, generation, sequence, durable, root };
            slot.encode().map_err(|error| Error::encoding(&directory, error))
        })
    }

    /// Removes the segments that nothing kept needs.
    fn release(&mut self) {
        let live = space::live(&self.kept, self.tail.place().map(|place| place.segment));
        let open = self.epoch.as_ref().map(|epoch| epoch.first);
        let dead = |number: &LogSegment| !live.contains(number) && open.is_none_or(|open| *number < open);
        let gone: Vec<LogSegment> = self.segments.iter().map(|state| state.number).filter(dead).collect();
        gone.iter().for_each(|number| self.segments.remove(*number));
        self.tail.helper().remove(gone);
    }

    /// Chooses what to move next, and has it read.
    fn plan(&mut self) -> Result<()> {
        let fill = Fill::of(&self.segments, self.blocks);
        let active = self.tail.place().map(|place| place.segment);
        self.cleaner.plan(fill, &mut self.segments, &self.pages, |number| Some(number) == active);
        if let (Some(cold), Some(active)) = (&mut self.cold, active) {
            cold.plan(&mut self.segments, active);
        }
        self.cleaner.feed(self.tail.helper())
    }

    /// Notes which segments have been compressed.
    fn note_compressed(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        while let Some((number, length)) = cold.take_done() {
            match self.segments.get_mut(number) {
                Some(state) => state.compressed = Some(length.map_or(Compressed::Not, Compressed::To)),
                // Removed meanwhile, as it was.
                None => self.tail.helper().remove(vec![number]),
            }
        }
    }

    /// Whether a reader may meet compressed segments.
    pub(super) fn may_be_compressed(&self) -> bool {
        self.cold.is_some() || self.segments.iter().any(|state| state.compressed.is_some())
    }

    /// Tells the state to whoever asks.
    pub(super) fn report(&mut self) {
        self.status.kept = self.kept.iter().map(|kept| kept.entry.sequence).collect();
        self.status.pages = PageCount(self.pages.pages());
        self.status.stored = PageCount(self.pages.stored());
        self.status.segments = self.segments.len();
        let lengths = self.segments.iter().map(|state| match state.compressed {
            Some(Compressed::To(length)) => length.get(),
            _ => self.blocks * PAGE_BYTES,
        });
        self.status.disk = ByteCount(lengths.sum());
        self.status.compressed = self.segments.compressed();
        self.status.written = ByteCount(self.tail.written());
        self.shared.set_status(self.status.clone());
    }

    pub(super) fn collect(&mut self) -> Result<()> {
        self.tail.collect()?;
        for (owner, buffer) in self.tail.take_returned() {
            match owner {
                Owner::Cleaner => self.cleaner.give(buffer),
                _ => self.shared.give_buffer(buffer),
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: &Error) {
        for pending in std::mem::take(&mut self.pending) {
            pending.promise.answer(Err(error.clone()));
        }
        self.shared.fail(error);
    }
}

/// Where the blocks of a buffer went.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<(u32, u32, super::table::Spot)>);

impl Places {
    /// The spot of a block.
    pub(super) fn spot(&self, number: u32) -> super::table::Spot {
        let found = self.0.iter().find(|(from, count, _)| (*from..from + count).contains(&number));
        let (from, _, spot) = found.copied().unwrap_or((0, 0, super::table::Spot::new(0)));
        debug_assert!(found.is_some(), "every block that was appended has its place");
        super::table::Spot::new(spot.get() + (number - from))
    }
}

/// Lets nobody wait for a thread that is gone.
struct FailOnPanic {
    shared: Arc<Shared>,
}

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.fail(&Error::Io(sys::Error::new("go on after a panic", Errno::SHORT)));
        }
    }
}
