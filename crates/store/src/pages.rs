//! Writes the pages of an image. A thread hashes and writes full buffers, while copiers (threads that copy pages of the
//! subject) fill the next buffers. If an image has only a few pages, `PagesWriter::end` writes the pages, without a
//! thread.
//!
//! Owns: the decision to start the thread; the thread, and the queue of its orders (messages); the
//! table of the pages.
//! Invariants: batches (filled buffers) are processed in the sequence in which the copiers sent the batches. No write
//! is in flight after the `PagesWriter` was dropped, or after `Ending::wait` has returned.
//! Does not: copy from a subject, or publish the image.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use model::{ByteCount, PAGE_BYTES};
use sys::clock::Stopwatch;

use crate::batch::{PageBatch, PageChange};
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::known_pages::KnownPages;
use crate::layout::WriteOptions;
use crate::lock::locked;
use crate::log::table::{BlockIndex, PageContent, PageTable};
use crate::medium::{Medium, Writes};
use crate::meta::WriteTimings;
use crate::packer::pack_each;
use crate::pool::{PagePool, Waits};
use crate::segment::{EndedSegment, SegmentWriter};
use crate::stock::BufferStock;
use crate::threads::OnPanic;

/// The maximum number of queued orders. A pool of the default size has fewer buffers, so the queue has space for every
/// buffer.
const ORDERS_MAX: usize = 64;

/// The size of a buffer for compressed pages.
const BUFFER_BYTES: ByteCount = ByteCount(2 << 20);

/// The number of unused pages that a segment may contain at the end: a 32nd of the used pages, and 64 pages.
const UNUSED_SHARE: u32 = 32;
const UNUSED_PAGES: u32 = 64;

/// An order for the writing thread.
#[derive(Debug)]
pub(crate) enum Order {
    Change(PageChange),
    Finish,
}

/// The result of the writing thread. The thread waits for all its writes before it exits, because the kernel may cancel
/// the writes of an exiting thread.
#[derive(Debug)]
pub(crate) struct Finished {
    /// All pages. The number of a block is the position of the page in the segment.
    pub(crate) pages: PageTable,
    /// The segment, not yet durable; `None` if no page was stored.
    pub(crate) segment: Option<EndedSegment>,
    /// The codec that has compressed the segment.
    pub(crate) codec: Option<&'static dyn Codec>,
    /// The durations, without the time of the commit.
    pub(crate) timings: WriteTimings,
}

type Outcome = Result<Option<Finished>>;

/// Receives the pages of an image.
#[derive(Debug)]
pub(crate) struct PagesWriter {
    /// `None` after the end, and after a failure to start the thread.
    stage: Mutex<Option<Stage>>,
    pub(crate) pool: Arc<PagePool>,
}

#[derive(Debug)]
enum Stage {
    /// At most one small batch was received. The start and the end of a thread would take longer than the write of this
    /// batch.
    Few {
        worker: Box<Worker>,
        held: Option<PageBatch>,
    },
    Thread {
        orders: SyncSender<Order>,
        handle: JoinHandle<Outcome>,
    },
}

impl PagesWriter {
    pub(crate) fn new(medium: Arc<dyn Medium>, segment: PathBuf, options: WriteOptions) -> Self {
        let WriteOptions { buffers, buffer_pages, codec } = options;
        let pool = Arc::new(PagePool::new(buffers.get(), BufferStock::new(buffer_pages), Waits::Always));
        let worker = Box::new(Worker {
            medium,
            path: segment,
            pool: Arc::clone(&pool),
            writes: Writes::Many(buffers),
            codec,
            segment: None,
            pages: PageTable::default(),
            known: None,
            timings: WriteTimings::default(),
        });
        Self { stage: Mutex::new(Some(Stage::Few { worker, held: None })), pool }
    }

    pub(crate) fn send(&self, order: Order) -> Result<()> {
        let mut stage = locked(&self.stage);
        let order = match (&mut *stage, order) {
            (Some(Stage::Few { held: held @ None, .. }), Order::Change(PageChange::Pages(batch)))
                if batch.buffer.size() < self.pool.size() =>
            {
                *held = Some(batch);
                return Ok(());
            }
            // No page was received yet, so the order has no effect. The thread is not started, because the subject may
            // be stopped, and the start of a thread takes time.
            (Some(Stage::Few { held: None, .. }), Order::Change(PageChange::Discard(..))) => return Ok(()),
            (_, order) => order,
        };
        let orders = self.start(&mut stage)?;
        // The lock is released before `pass`. `pass` may wait for the thread, and other copiers must not wait for the
        // lock meanwhile.
        drop(stage);
        self.pass(&orders, order)
    }

    /// Ends the writer, and returns when all received pages are written. Calls `meanwhile` while the thread writes the last
    /// pages.
    pub(crate) fn end<T>(self, meanwhile: impl FnOnce() -> T) -> Result<(Finished, T)> {
        match locked(&self.stage).take() {
            Some(Stage::Few { worker, held }) => Ok((worker.write_few(held)?, meanwhile())),
            Some(Stage::Thread { orders, handle }) => {
                let passed = self.pass(&orders, Order::Finish);
                let made = meanwhile();
                match handle.join() {
                    Ok(Ok(Some(finished))) => passed.map(|()| (finished, made)),
                    Ok(Ok(None)) => Err(failure(&self.pool)),
                    Ok(Err(error)) => Err(error),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            None => Err(failure(&self.pool)),
        }
    }

    /// Returns the queue of the thread. Starts the thread if the thread does not run.
    fn start(&self, stage: &mut Option<Stage>) -> Result<SyncSender<Order>> {
        if let Some(Stage::Thread { orders, .. }) = stage {
            return Ok(orders.clone());
        }
        let Some(Stage::Few { worker, held }) = stage.take() else { return Err(failure(&self.pool)) };
        let (orders, receiver) = mpsc::sync_channel(ORDERS_MAX);
        let thread = std::thread::Builder::new().name("undying-image".to_owned());
        let handle = thread.spawn(move || worker.run(&receiver));
        let handle = handle.map_err(|error| sys::Error::new("start a thread", error))?;
        *stage = Some(Stage::Thread { orders: orders.clone(), handle });
        // The new queue has space for this order.
        held.map_or(Ok(()), |batch| self.pass(&orders, Order::Change(PageChange::Pages(batch))))?;
        Ok(orders)
    }

    fn pass(&self, orders: &SyncSender<Order>, order: Order) -> Result<()> {
        orders.send(order).map_err(|_| failure(&self.pool))
    }
}

impl Drop for PagesWriter {
    fn drop(&mut self) {
        if let Some(Stage::Thread { orders, handle }) = locked(&self.stage).take() {
            drop(orders);
            // The result of the thread is not needed, because the image is discarded.
            let _ = handle.join();
        }
    }
}

/// Writes the pages that are not zero pages to a file at `path`. The file is created when the first page must be
/// stored.
#[derive(Debug)]
struct Worker {
    medium: Arc<dyn Medium>,
    path: PathBuf,
    pool: Arc<PagePool>,
    writes: Writes,
    codec: Option<&'static dyn Codec>,
    segment: Option<SegmentWriter>,
    pages: PageTable,
    known: Option<KnownPages>,
    timings: WriteTimings,
}

impl Worker {
    /// Processes orders until `Order::Finish`. Returns `None` if the `PagesWriter` was dropped before `Order::Finish`.
    fn run(self, orders: &Receiver<Order>) -> Result<Option<Finished>> {
        let pool = Arc::clone(&self.pool);
        let _guard = OnPanic(|| pool.fail(&Error::panicked()));
        self.work(orders).inspect_err(|error| pool.fail(error))
    }

    /// Writes the only batch in the calling thread.
    fn write_few(mut self, batch: Option<PageBatch>) -> Result<Finished> {
        self.writes = Writes::One;
        if let Some(batch) = batch {
            self.store(batch)?;
        }
        self.flush()?;
        if let Some(segment) = &mut self.segment {
            segment.start_sync()?;
        }
        self.finish()
    }

    fn work(mut self, orders: &Receiver<Order>) -> Result<Option<Finished>> {
        loop {
            self.collect()?;
            let order = match orders.try_recv() {
                Ok(order) => order,
                // The queue is empty, but a copier may be waiting for a free buffer. Therefore this arm waits for a
                // write: a completed write frees a buffer.
                Err(TryRecvError::Empty) if self.wait()? => continue,
                Err(TryRecvError::Empty) => match orders.recv() {
                    Ok(order) => order,
                    Err(_) => return Ok(None),
                },
                Err(TryRecvError::Disconnected) => return Ok(None),
            };
            match order {
                Order::Change(PageChange::Pages(batch)) => self.store(batch)?,
                Order::Change(PageChange::Discard(space, range)) => {
                    let end = range.end.get().div_ceil(PAGE_BYTES);
                    self.pages.remove(space, range.start.get() / PAGE_BYTES..end, |_| {});
                }
                Order::Finish => {
                    self.flush()?;
                    return self.finish().map(Some);
                }
            }
        }
    }

    /// Gives the buffers of completed writes back to the pool.
    fn collect(&mut self) -> Result<()> {
        let Some(segment) = &mut self.segment else { return Ok(()) };
        while let Some(buffer) = segment.take_done()? {
            self.pool.give(buffer);
        }
        Ok(())
    }

    /// Waits until one write is complete. Returns false if no write is in flight.
    fn wait(&mut self) -> Result<bool> {
        let Some(segment) = &mut self.segment else { return Ok(false) };
        let took = Stopwatch::start();
        let buffer = segment.wait_done()?;
        self.timings.write += took.elapsed();
        let waited = buffer.is_some();
        buffer.into_iter().for_each(|buffer| self.pool.give(buffer));
        Ok(waited)
    }

    fn store(&mut self, batch: PageBatch) -> Result<()> {
        let mut took = Stopwatch::start();
        let (mut buffer, pieces) = self.pool.parts_of(batch);
        if self.known.is_none() && pieces.iter().any(|piece| piece.is_shared) {
            self.known = Some(KnownPages::new()?);
        }
        let end = self.segment.as_ref().map_or(0, |segment| segment.end) / PAGE_BYTES;
        if end + buffer.size().get() / PAGE_BYTES > BlockIndex::MAX.into() {
            return Err(sys::Error::path("store more than 16 TiB in", &self.path, sys::Errno::ENOSPC).into());
        }
        let Self { pages, known, .. } = self;
        let packed = pack_each(&mut buffer, &pieces, |piece, page, content, stored| {
            let Some((bytes, checksum)) = content else {
                pages.set(piece.space, page, PageContent::Zero);
                return false;
            };
            let next = BlockIndex::new(end as u32 + stored);
            let known = known.as_mut().filter(|_| piece.is_shared);
            let known = known.and_then(|known| known.find(page, bytes, next));
            pages.set(piece.space, page, PageContent::At(known.unwrap_or(next), checksum));
            known.is_none()
        });
        let packed = ByteCount(u64::from(packed) * PAGE_BYTES);
        self.pool.give_pieces(pieces);
        self.timings.hash += took.lap();
        if packed == ByteCount(0) {
            self.pool.give(buffer);
            return Ok(());
        }
        let segment = match &mut self.segment {
            Some(segment) => segment,
            None => {
                let begun = self.begin(packed)?;
                self.segment.insert(begun)
            }
        };
        let compressed_before = segment.spent();
        segment.submit(buffer, packed)?;
        self.timings.write += took.lap().saturating_sub(segment.spent() - compressed_before);
        Ok(())
    }

    /// Moves the last pages of the segment to places that no page uses, if there are many such places: pages were
    /// discarded, or copied again. Not called while pages are copied, because a pause could wait for it.
    fn compact(&mut self) -> Result<()> {
        let Some(segment) = self.segment.as_mut().filter(|segment| segment.can_rewrite()) else {
            return Ok(());
        };
        let all = (segment.end / PAGE_BYTES) as u32;
        let mut is_used = vec![false; all as usize];
        for (.., content) in self.pages.iter() {
            if let PageContent::At(block, _) = content {
                is_used[block.get() as usize] = true;
            }
        }
        let used = is_used.iter().filter(|is_used| **is_used).count() as u32;
        if all <= used + used / UNUSED_SHARE + UNUSED_PAGES {
            return Ok(());
        }
        let source = self.medium.open_pages(&self.path)?;
        let free = (0..used).filter(|block| !is_used[*block as usize]);
        let moves: Vec<(u32, u32)> = (used..all).filter(|block| is_used[*block as usize]).zip(free).collect();
        let bytes_of = |blocks: u32| ByteCount(u64::from(blocks) * PAGE_BYTES);
        let mut bytes = Vec::new();
        // In the order of their offsets, the kernel reads the pages ahead.
        for group in moves.chunk_by(|one, other| (one.0 + 1, one.1 + 1) == *other) {
            bytes.resize(group.len() * PAGE_BYTES as usize, 0);
            source.read(&mut bytes, bytes_of(group[0].0))?;
            segment.rewrite(&bytes, bytes_of(group[0].1))?;
        }
        // Several pages can be in one block.
        let moved = |content| {
            let PageContent::At(block, checksum) = content else { return None };
            let found = moves.binary_search_by_key(&block.get(), |(from, _)| *from).ok()?;
            Some(PageContent::At(BlockIndex::new(moves[found].1), checksum))
        };
        let all = self.pages.iter();
        let moved: Vec<_> = all.filter_map(|(space, page, at)| Some((space, page, moved(at)?))).collect();
        for (space, page, content) in moved {
            self.pages.set(space, page, content);
        }
        segment.end = bytes_of(used).get();
        Ok(())
    }

    /// Writes the compressed bytes that are still in a buffer.
    fn flush(&mut self) -> Result<()> {
        self.segment.as_mut().map_or(Ok(()), SegmentWriter::flush)
    }

    fn finish(mut self) -> Result<Finished> {
        while self.wait()? {}
        self.compact()?;
        let Self { path, codec, segment, pages, mut timings, .. } = self;
        timings.compress = segment.as_ref().map(SegmentWriter::spent).unwrap_or_default();
        let ended = segment.map(SegmentWriter::into_ended).transpose();
        let segment = ended.map_err(|error| Error::encoding(&path, error))?;
        Ok(Finished { pages, segment, codec, timings })
    }

    /// Creates the segment file. `first` is the number of bytes of stored pages in the first batch.
    fn begin(&self, first: ByteCount) -> Result<SegmentWriter> {
        let sink = self.medium.create_pages(&self.path, self.writes)?;
        let buffer = match self.writes {
            // The file contains one batch of `first` bytes. The compressed form of the batch is not longer.
            Writes::One => first,
            Writes::Many(_) => BUFFER_BYTES,
        };
        match self.codec {
            Some(codec) => SegmentWriter::compressed(sink, codec, buffer),
            None => Ok(SegmentWriter::plain(sink)),
        }
    }
}

/// Returns the error that explains why the thread accepts no more orders.
fn failure(pool: &PagePool) -> Error {
    let gone = || Error::Io(sys::Error::new("continue after a failed write", sys::Errno::SHORT));
    pool.failure().unwrap_or_else(gone)
}
