//! The way of pages into an image: hashed and sent to the device by a thread while copiers fill the next buffers, or all
//! at the end when they are few.
//!
//! Owns: the decision between the two, the worker and the way to it, the page map.
//! Invariants: batches are taken in the order they were sent; no write is under way once the writer, or its end,
//! was waited for or dropped.
//! Does not: copy from a subject, or publish.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use image::{PageMap, SegmentId, SpaceId};
use model::{AddressRange, ByteCount};
use sys::clock::Stopwatch;

use crate::batch::PageBatch;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::layout::WriteOptions;
use crate::medium::{Medium, Writes};
use crate::meta::WriteTimings;
use crate::packer::pack_into;
use crate::pool::{OnPanic, Pool, locked};
use crate::segment::{EndedSegment, SegmentWriter};

/// Orders that wait for the worker at most; every buffer of a pool can wait, and more would exceed the granted
/// memory.
const ORDERS_MAX: usize = 64;

/// Bytes that are written at a time when they come from a codec.
const BUFFER_BYTES: ByteCount = ByteCount(2 << 20);

/// The only segment that a writer makes.
pub(crate) const SEGMENT: SegmentId = SegmentId(0);

/// What the writer tells its worker.
#[derive(Debug)]
pub(crate) enum Order {
    Pages(PageBatch),
    Discard(SpaceId, AddressRange),
    Finish,
}

/// What the worker has done. No write is under way any more: the kernel may cancel those of a thread that
/// exits.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) map: PageMap,
    /// The segment, not yet durable; none if no page was stored.
    pub(crate) segment: Option<EndedSegment>,
    /// What has compressed it.
    pub(crate) codec: Option<&'static dyn Codec>,
    /// Without that of the commit.
    pub(crate) timings: WriteTimings,
}

type Outcome = Result<Option<Finished>>;

/// Takes pages for an image.
#[derive(Debug)]
pub(crate) struct PagesWriter {
    stage: Mutex<Stage>,
    pub(crate) pool: Arc<Pool>,
}

#[derive(Debug)]
enum Stage {
    /// At most one small batch has come: to wake a thread, and to wait for it, would take longer than to write it.
    Few {
        worker: Box<Worker>,
        held: Option<PageBatch>,
    },
    Thread {
        orders: SyncSender<Order>,
        handle: JoinHandle<Outcome>,
    },
    Over,
}

/// A writer that takes no more pages.
#[derive(Debug)]
pub(crate) enum Ending {
    Done(Finished),
    Coming { pool: Arc<Pool>, handle: JoinHandle<Outcome> },
}

impl PagesWriter {
    pub(crate) fn new(medium: Arc<dyn Medium>, segment: PathBuf, options: WriteOptions) -> Self {
        let WriteOptions { buffers, buffer_pages, codec } = options;
        let pool = Arc::new(Pool::new(buffers.get(), buffer_pages));
        let worker = Box::new(Worker {
            medium,
            path: segment,
            pool: Arc::clone(&pool),
            writes: Writes::Many(buffers),
            codec,
            segment: None,
            map: PageMap::new(),
            timings: WriteTimings::default(),
        });
        Self { stage: Mutex::new(Stage::Few { worker, held: None }), pool }
    }

    /// Many pages are going to come: starts the thread.
    pub(crate) fn begin(&self) -> Result<()> {
        locked(&self.stage).start(&self.pool).map(drop)
    }

    pub(crate) fn send(&self, order: Order) -> Result<()> {
        let mut stage = locked(&self.stage);
        let order = match (&mut *stage, order) {
            (Stage::Few { held: held @ None, .. }, Order::Pages(batch))
                if batch.buffer.size() < self.pool.size =>
            {
                *held = Some(batch);
                return Ok(());
            }
            // Told inside a pause, where a thread is not to be started for nothing.
            (Stage::Few { held: None, .. }, Order::Discard(..)) => return Ok(()),
            (_, order) => order,
        };
        let orders = stage.start(&self.pool)?;
        // It may wait for the worker.
        drop(stage);
        self.pass(&orders, order)
    }

    /// Takes no more pages, and has what there is written.
    pub(crate) fn end(self) -> Result<Ending> {
        match std::mem::replace(&mut *locked(&self.stage), Stage::Over) {
            Stage::Few { worker, held } => worker.write_few(held).map(Ending::Done),
            Stage::Thread { orders, handle } => {
                let ending = Ending::Coming { pool: Arc::clone(&self.pool), handle };
                match self.pass(&orders, Order::Finish) {
                    Ok(()) => Ok(ending),
                    Err(error) => ending.wait().and(Err(error)),
                }
            }
            Stage::Over => Err(failure(&self.pool)),
        }
    }

    fn pass(&self, orders: &SyncSender<Order>, order: Order) -> Result<()> {
        orders.send(order).map_err(|_| failure(&self.pool))
    }
}

impl Stage {
    /// The way to the thread, which is started if it was not.
    fn start(&mut self, pool: &Pool) -> Result<SyncSender<Order>> {
        match std::mem::replace(self, Self::Over) {
            Self::Few { worker, held } => {
                let (orders, receiver) = mpsc::sync_channel(ORDERS_MAX);
                let thread = std::thread::Builder::new().name("undying-image".to_owned());
                let handle = thread.spawn(move || worker.run(&receiver));
                let handle = handle.map_err(|error| sys::Error::new("start a thread", error))?;
                *self = Self::Thread { orders: orders.clone(), handle };
                // It has room for this one.
                match held.map(|batch| orders.send(Order::Pages(batch))) {
                    Some(Err(_)) => Err(failure(pool)),
                    _ => Ok(orders),
                }
            }
            Self::Thread { orders, handle } => {
                *self = Self::Thread { orders: orders.clone(), handle };
                Ok(orders)
            }
            Self::Over => Err(failure(pool)),
        }
    }
}

impl Ending {
    /// Waits until everything is written.
    pub(crate) fn wait(self) -> Result<Finished> {
        let (pool, handle) = match self {
            Self::Done(finished) => return Ok(finished),
            Self::Coming { pool, handle } => (pool, handle),
        };
        match handle.join() {
            Ok(Ok(Some(finished))) => Ok(finished),
            Ok(Ok(None)) => Err(failure(&pool)),
            Ok(Err(error)) => Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for PagesWriter {
    fn drop(&mut self) {
        if let Stage::Thread { orders, handle } = std::mem::replace(&mut *locked(&self.stage), Stage::Over) {
            drop(orders);
            // Its result, or panic, is of no more use: the image is given up.
            let _ = handle.join();
        }
    }
}

/// Puts non-zero pages into a file at `path`, created when the first one comes.
#[derive(Debug)]
struct Worker {
    medium: Arc<dyn Medium>,
    path: PathBuf,
    pool: Arc<Pool>,
    writes: Writes,
    codec: Option<&'static dyn Codec>,
    segment: Option<SegmentWriter>,
    map: PageMap,
    timings: WriteTimings,
}

impl Worker {
    /// Works until told to finish. `None` when the writer was dropped instead.
    fn run(self, orders: &Receiver<Order>) -> Result<Option<Finished>> {
        let pool = Arc::clone(&self.pool);
        let _guard = OnPanic(|error: &Error| pool.fail(error));
        self.work(orders).inspect_err(|error| pool.fail(error))
    }

    /// Writes a last batch, which is all there is, without a thread.
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
                // Buffers must come back even when nothing more is sent: a copier may be waiting for one.
                Err(TryRecvError::Empty) if self.wait()? => continue,
                Err(TryRecvError::Empty) => match orders.recv() {
                    Ok(order) => order,
                    Err(_) => return Ok(None),
                },
                Err(TryRecvError::Disconnected) => return Ok(None),
            };
            match order {
                Order::Pages(batch) => self.store(batch)?,
                Order::Discard(space, range) => self.map.discard(space, range),
                Order::Finish => {
                    self.flush()?;
                    return self.finish().map(Some);
                }
            }
        }
    }

    /// Gives back buffers whose writes are complete.
    fn collect(&mut self) -> Result<()> {
        let Some(segment) = &mut self.segment else { return Ok(()) };
        while let Some(buffer) = segment.take_done()? {
            self.pool.give(buffer);
        }
        Ok(())
    }

    /// Waits for one write; false when none is under way.
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
        let (mut buffer, pieces) = batch.into_parts();
        let segment_end = self.segment.as_ref().map_or(0, |segment| segment.end);
        let packed = pack_into(&mut self.map, SEGMENT, segment_end, &mut buffer, &pieces).bytes();
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

    /// Writes what compressing has held back.
    fn flush(&mut self) -> Result<()> {
        self.segment.as_mut().map_or(Ok(()), SegmentWriter::flush)
    }

    fn finish(mut self) -> Result<Finished> {
        while self.wait()? {}
        let Self { path, codec, segment, map, mut timings, .. } = self;
        timings.compress = segment.as_ref().map(SegmentWriter::spent).unwrap_or_default();
        let ended = segment.map(SegmentWriter::into_ended).transpose();
        let segment = ended.map_err(|error| Error::encoding(&path, error))?;
        Ok(Finished { map, segment, codec, timings })
    }

    /// Begins the segment; `first` bytes of pages come at first.
    fn begin(&self, first: ByteCount) -> Result<SegmentWriter> {
        let sink = self.medium.create_pages(&self.path, self.writes)?;
        let buffer = match self.writes {
            // All there is, and compressed it is no longer.
            Writes::One => first,
            Writes::Many(_) => BUFFER_BYTES,
        };
        match self.codec {
            Some(codec) => SegmentWriter::compressed(sink, codec, buffer),
            None => Ok(SegmentWriter::plain(sink)),
        }
    }
}

/// Why the worker takes no more orders.
fn failure(pool: &Pool) -> Error {
    let gone = || Error::Io(sys::Error::new("go on after a failed write", sys::Errno::SHORT));
    pool.failure().unwrap_or_else(gone)
}
