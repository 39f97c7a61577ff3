//! Hashes pages and sends them to the device, as a thread while copiers fill the next buffers.
//!
//! Owns: leaving out zero pages, checksums, the segment's layout, the page map.
//! Invariants: batches are taken in the order they were sent; a page's checksum is computed from the very
//! bytes that are written.
//! Does not: copy from a subject, or publish.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use image::{PageChecksum, PageMap, SegmentId, SpaceId};
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};
use sys::Errno;
use sys::page_buffer::PageBuffer;

use crate::batch::{PageBatch, Piece};
use crate::error::{Error, Result};
use crate::medium::{Medium, PageSink, Writes};
use crate::pool::Pool;

const PAGE: usize = PAGE_BYTES as usize;

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
    pub(crate) segment: Option<Box<dyn PageSink>>,
    pub(crate) segment_length: ByteCount,
    pub(crate) hash: Duration,
    pub(crate) write: Duration,
}

#[derive(Debug)]
pub(crate) struct Worker {
    medium: Arc<dyn Medium>,
    path: PathBuf,
    pool: Arc<Pool>,
    writes: Writes,
    sink: Option<Box<dyn PageSink>>,
    map: PageMap,
    length: u64,
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
    ) -> Self {
        Self {
            medium,
            path,
            pool,
            writes: Writes::Many(in_flight),
            sink: None,
            map: PageMap::new(),
            length: 0,
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
        if let Some(sink) = &mut self.sink {
            sink.start_sync()?;
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
                Order::Finish => return self.finish().map(Some),
            }
        }
    }

    /// Gives back buffers whose writes are complete.
    fn collect(&mut self) -> Result<()> {
        let Some(sink) = &mut self.sink else { return Ok(()) };
        while let Some(buffer) = sink.take_done()? {
            self.pool.give(buffer);
        }
        Ok(())
    }

    /// Waits for one write; false when none is under way.
    fn wait(&mut self) -> Result<bool> {
        let Some(sink) = &mut self.sink else { return Ok(false) };
        let begun = Instant::now();
        let buffer = sink.wait_done()?;
        self.write += begun.elapsed();
        let waited = buffer.is_some();
        buffer.into_iter().for_each(|buffer| self.pool.give(buffer));
        Ok(waited)
    }

    fn store(&mut self, batch: PageBatch) -> Result<()> {
        let begun = Instant::now();
        let (mut buffer, pieces) = batch.into_parts();
        let mut packer = Packer { map: &mut self.map, segment_end: self.length, packed: 0 };
        for piece in &pieces {
            packer.pack(&mut buffer, piece);
        }
        let packed = PageCount(packer.packed).bytes();
        self.hash += begun.elapsed();
        if packed == ByteCount(0) {
            self.pool.give(buffer);
            return Ok(());
        }
        let begun = Instant::now();
        let sink = match &mut self.sink {
            Some(sink) => sink,
            None => self.sink.insert(self.medium.create_pages(&self.path, self.writes)?),
        };
        sink.submit(buffer, packed, ByteCount(self.length))?;
        self.length += packed.get();
        self.write += begun.elapsed();
        Ok(())
    }

    fn finish(mut self) -> Result<Finished> {
        while self.wait()? {}
        Ok(Finished {
            map: self.map,
            segment: self.sink,
            segment_length: ByteCount(self.length),
            hash: self.hash,
            write: self.write,
        })
    }
}

/// Moves the non-zero pages of a buffer to its front and enters all pages into the map.
struct Packer<'a> {
    map: &'a mut PageMap,
    segment_end: u64,
    packed: u64,
}

impl Packer<'_> {
    fn pack(&mut self, buffer: &mut PageBuffer, piece: &Piece) {
        let mut checksums: Vec<PageChecksum> = Vec::with_capacity(piece.pages.get() as usize);
        let mut zeros = 0;
        for number in 0..piece.pages.get() {
            let from = (piece.at.get() + number) as usize * PAGE;
            let (page, _) = buffer[from..].as_chunks::<PAGE>();
            if is_zero(&page[0]) {
                self.enter(piece, number, &mut checksums);
                zeros += 1;
                continue;
            }
            self.enter_zeros(piece, number, &mut zeros);
            checksums.push(PageChecksum::of(&page[0]));
            let to = self.packed as usize * PAGE;
            if to != from {
                buffer.copy_within(from..from + PAGE, to);
            }
            self.packed += 1;
        }
        self.enter(piece, piece.pages.get(), &mut checksums);
        self.enter_zeros(piece, piece.pages.get(), &mut zeros);
    }

    /// Enters the stored pages that end before page `end` of the piece, the last ones packed.
    fn enter(&mut self, piece: &Piece, end: u64, checksums: &mut Vec<PageChecksum>) {
        if checksums.is_empty() {
            return;
        }
        let count = checksums.len() as u64;
        let offset = self.segment_end + (self.packed - count) * PAGE_BYTES;
        self.map.store(piece.space, page_address(piece, end - count), SEGMENT, ByteCount(offset), checksums);
        checksums.clear();
    }

    /// Enters the zero pages that end before page `end` of the piece.
    fn enter_zeros(&mut self, piece: &Piece, end: u64, zeros: &mut u64) {
        if *zeros > 0 {
            self.map.zero(piece.space, page_address(piece, end - *zeros), PageCount(*zeros));
        }
        *zeros = 0;
    }
}

fn page_address(piece: &Piece, number: u64) -> Address {
    piece.start + PageCount(number).bytes()
}

/// Whether every byte is zero. Most pages that are not show it in their first bytes; the others are read in
/// blocks that compile to vector instructions.
pub(crate) fn is_zero(page: &[u8; PAGE]) -> bool {
    let (blocks, _) = page.as_chunks::<128>();
    blocks.iter().all(|block| block.iter().fold(0, |any, byte| any | byte) == 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_zero_only_if_every_byte_is() {
        let mut page = [0; PAGE];
        assert!(is_zero(&page));
        for place in 0..PAGE {
            page[place] = 1;
            assert!(!is_zero(&page), "byte {place}");
            page[place] = 0;
        }
    }
}
