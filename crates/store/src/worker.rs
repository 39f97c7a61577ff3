//! Hashes pages and sends them to the device, as a thread while copiers fill the next buffers.
//!
//! Owns: the page map.
//! Invariants: batches are taken in the order they were sent.
//! Does not: copy from a subject, or publish.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use image::{PageMap, SegmentId, SpaceId};
use model::{AddressRange, ByteCount};
use sys::Errno;
use sys::clock::Stopwatch;

use crate::batch::PageBatch;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::medium::{Medium, Writes};
use crate::packer::pack_into;
use crate::pool::Pool;
use crate::segment::{EndedSegment, SegmentWriter};

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
    pub(crate) hash: Duration,
    pub(crate) compress: Duration,
    pub(crate) write: Duration,
}

#[derive(Debug)]
pub(crate) struct Worker {
    medium: Arc<dyn Medium>,
    path: PathBuf,
    pool: Arc<Pool>,
    writes: Writes,
    codec: Option<&'static dyn Codec>,
    segment: Option<SegmentWriter>,
    map: PageMap,
    hash: Duration,
    write: Duration,
}

impl Worker {
    /// A worker that puts non-zero pages into a file at `path`, created when the first one comes.
    pub(crate) fn new(
        medium: Arc<dyn Medium>,
        path: PathBuf,
        pool: Arc<Pool>,
        in_flight: NonZeroUsize,
        codec: Option<&'static dyn Codec>,
    ) -> Self {
        Self {
            medium,
            path,
            pool,
            writes: Writes::Many(in_flight),
            codec,
            segment: None,
            map: PageMap::new(),
            hash: Duration::ZERO,
            write: Duration::ZERO,
        }
    }

    /// Works until told to finish. `None` when the writer was dropped instead.
    pub(crate) fn run(self, orders: &Receiver<Order>) -> Result<Option<Finished>> {
        let _guard = FailOnPanic { pool: Arc::clone(&self.pool) };
        let pool = Arc::clone(&self.pool);
        self.work(orders).inspect_err(|error| pool.fail(error))
    }

    /// Writes a last batch, which is all there is, without a thread.
    pub(crate) fn write_few(mut self, batch: Option<PageBatch>) -> Result<Finished> {
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
        self.write += took.elapsed();
        let waited = buffer.is_some();
        buffer.into_iter().for_each(|buffer| self.pool.give(buffer));
        Ok(waited)
    }

    fn store(&mut self, batch: PageBatch) -> Result<()> {
        let mut took = Stopwatch::start();
        let (mut buffer, pieces) = batch.into_parts();
        let segment_end = self.segment.as_ref().map_or(0, |segment| segment.end().get());
        let packed = pack_into(&mut self.map, SEGMENT, segment_end, &mut buffer, &pieces).bytes();
        self.hash += took.lap();
        if packed == ByteCount(0) {
            self.pool.give(buffer);
            return Ok(());
        }
        let segment = match &mut self.segment {
            Some(segment) => segment,
            None => self.segment.insert(create(&*self.medium, &self.path, self.writes, self.codec, packed)?),
        };
        let compressed_before = segment.spent();
        segment.submit(buffer, packed)?;
        self.write += took.lap().saturating_sub(segment.spent() - compressed_before);
        Ok(())
    }

    /// Writes what compressing has held back.
    fn flush(&mut self) -> Result<()> {
        self.segment.as_mut().map_or(Ok(()), SegmentWriter::flush)
    }

    fn finish(mut self) -> Result<Finished> {
        while self.wait()? {}
        let compress = self.segment.as_ref().map_or(Duration::ZERO, SegmentWriter::spent);
        let ended = self.segment.map(SegmentWriter::into_ended).transpose();
        Ok(Finished {
            map: self.map,
            segment: ended.map_err(|error| Error::encoding(&self.path, error))?,
            codec: self.codec,
            hash: self.hash,
            compress,
            write: self.write,
        })
    }
}

/// Begins a segment; `first` bytes of pages come at first.
fn create(
    medium: &dyn Medium,
    path: &Path,
    writes: Writes,
    codec: Option<&'static dyn Codec>,
    first: ByteCount,
) -> Result<SegmentWriter> {
    let sink = medium.create_pages(path, writes)?;
    let buffer = match writes {
        // All there is, and compressed it is no longer.
        Writes::One => first,
        Writes::Many(_) => BUFFER_BYTES,
    };
    match codec {
        Some(codec) => SegmentWriter::compressed(sink, codec, buffer),
        None => Ok(SegmentWriter::plain(sink)),
    }
}

/// Lets nobody wait for a worker that is gone.
struct FailOnPanic {
    pool: Arc<Pool>,
}

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.pool.fail(&Error::Io(sys::Error::new("go on after a panic", Errno::SHORT)));
        }
    }
}
