//! Writes the file of a segment, either uncompressed or compressed in chunks.
//!
//! Owns: dividing pages into chunks, distributing the chunks among threads, collecting the compressed bytes in buffers.
//! Invariants: the file contains the chunks in the order of their pages, without gaps, and nothing after the last
//! chunk. Each submitted buffer is returned exactly once.
//! Does not: know the addresses of the pages. The page map of the caller uses offsets in the uncompressed segment.

use std::thread;
use std::time::Duration;

use image::{CHUNK_BYTES, Checksum, ChunkTable, StoredChunk};
use model::{ByteCount, PAGE_BYTES};
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

use crate::codec::{Codec, Compressor};
use crate::error::{Error, Result};
use crate::medium::PageFile;

const CHUNK: usize = CHUNK_BYTES.0 as usize;

/// The maximum number of compressing threads.
const THREADS_MAX: usize = 8;

/// The maximum number of buffers with compressed bytes that are being filled or written.
const BUFFERS_MAX: usize = 4;

/// A segment file that is being written.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    sink: Box<dyn PageFile>,
    /// The offset of the next page in the uncompressed segment.
    pub(crate) end: u64,
    compressed: Option<Compressed>,
}

/// A completely written segment that is not yet durable.
#[derive(Debug)]
pub(crate) struct EndedSegment {
    pub(crate) sink: Box<dyn PageFile>,
    /// The length of the file.
    pub(crate) length: ByteCount,
    /// The table of chunks; `None` if the segment is not compressed.
    pub(crate) chunks: Option<ChunkTable>,
}

#[derive(Debug)]
struct Compressed {
    lanes: Vec<Lane>,
    /// The bytes of an incomplete chunk.
    begun: Vec<u8>,
    chunks: Vec<StoredChunk>,
    output: Output,
    /// Page buffers that can be returned to the caller.
    done: Vec<PageBuffer>,
    spent: Duration,
}

/// The compressor of one thread and its output.
#[derive(Debug)]
struct Lane {
    compressor: Box<dyn Compressor>,
    stored: Vec<u8>,
    chunks: Vec<StoredChunk>,
}

/// Compressed bytes that are being collected in buffers and written.
#[derive(Debug)]
struct Output {
    size: ByteCount,
    filling: Option<PageBuffer>,
    filled: usize,
    free: Vec<PageBuffer>,
    made: usize,
    end: u64,
}

impl SegmentWriter {
    /// Returns a writer that stores pages uncompressed.
    pub(crate) const fn plain(sink: Box<dyn PageFile>) -> Self {
        Self { sink, end: 0, compressed: None }
    }

    /// Returns a writer that compresses pages and writes the compressed bytes in buffers of `buffer` bytes.
    pub(crate) fn compressed(sink: Box<dyn PageFile>, codec: &dyn Codec, buffer: ByteCount) -> Result<Self> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        // More threads are useless: a buffer contains at most this number of chunks.
        let threads = threads.min(THREADS_MAX).min(buffer.get().div_ceil(CHUNK_BYTES.0) as usize);
        let mut lanes = Vec::with_capacity(threads);
        for _ in 0..threads {
            let compressor = codec.compressor(CHUNK)?;
            lanes.push(Lane { compressor, stored: Vec::new(), chunks: Vec::new() });
        }
        let output = Output { size: buffer, filling: None, filled: 0, free: Vec::new(), made: 0, end: 0 };
        let compressed = Compressed {
            lanes,
            begun: Vec::new(),
            chunks: Vec::new(),
            output,
            done: Vec::new(),
            spent: Duration::ZERO,
        };
        Ok(Self { sink, end: 0, compressed: Some(compressed) })
    }

    /// Returns the time spent on compression until now.
    pub(crate) fn spent(&self) -> Duration {
        self.compressed.as_ref().map_or(Duration::ZERO, |compressed| compressed.spent)
    }

    /// Appends the first `length` bytes of a buffer (whole pages) to the segment. The write may happen later.
    pub(crate) fn submit(&mut self, buffer: PageBuffer, length: ByteCount) -> Result<()> {
        let offset = ByteCount(self.end);
        self.end += length.get();
        let Some(compressed) = &mut self.compressed else {
            return Ok(self.sink.submit(buffer, ByteCount(0)..length, offset)?);
        };
        compressed.take(&buffer[..length.get() as usize], &mut *self.sink)?;
        compressed.done.push(buffer);
        Ok(())
    }

    /// Reports whether [`Self::rewrite`] is possible. Compressed pages have no places of their own.
    pub(crate) const fn can_rewrite(&self) -> bool {
        self.compressed.is_none()
    }

    /// Replaces whole pages at `offset`, which were submitted before.
    pub(crate) fn rewrite(&mut self, bytes: &[u8], offset: ByteCount) -> Result<()> {
        Ok(self.sink.rewrite(bytes, offset)?)
    }

    /// Returns a page buffer whose write is complete. Returns `None` if there is no such buffer now.
    pub(crate) fn take_done(&mut self) -> Result<Option<PageBuffer>> {
        let Some(compressed) = &mut self.compressed else { return Ok(self.sink.take_done()?) };
        while let Some(buffer) = self.sink.take_done()? {
            compressed.output.free.push(buffer);
        }
        Ok(compressed.done.pop())
    }

    /// Waits for a page buffer whose write is complete, and returns the buffer. Returns `None` if no write is in
    /// flight.
    pub(crate) fn wait_done(&mut self) -> Result<Option<PageBuffer>> {
        let Some(compressed) = &mut self.compressed else { return Ok(self.sink.wait_done()?) };
        if let Some(buffer) = compressed.done.pop() {
            return Ok(Some(buffer));
        }
        while let Some(buffer) = self.sink.wait_done()? {
            compressed.output.free.push(buffer);
        }
        Ok(None)
    }

    /// Starts writeback, and returns before the writeback is complete.
    pub(crate) fn start_sync(&mut self) -> Result<()> {
        Ok(self.sink.start_sync()?)
    }

    /// Writes incomplete chunks and partly filled buffers. Writes may be in flight when the call returns.
    pub(crate) fn flush(&mut self) -> Result<()> {
        match &mut self.compressed {
            Some(compressed) => compressed.flush(&mut *self.sink),
            None => Ok(()),
        }
    }

    /// Returns the segment. Call this after `flush`, when no write is in flight.
    pub(crate) fn into_ended(self) -> std::result::Result<EndedSegment, image::Error> {
        let whole = ByteCount(self.end);
        let Some(compressed) = self.compressed else {
            return Ok(EndedSegment { sink: self.sink, length: whole, chunks: None });
        };
        let table = ChunkTable::new(whole, &compressed.chunks)?;
        // The padding of the last page does not belong to the file.
        let length = table.stored();
        Ok(EndedSegment { sink: self.sink, length, chunks: Some(table) })
    }
}

impl Compressed {
    fn take(&mut self, bytes: &[u8], sink: &mut dyn PageFile) -> Result<()> {
        let missing = if self.begun.is_empty() { 0 } else { CHUNK - self.begun.len() };
        let (head, rest) = bytes.split_at(missing.min(bytes.len()));
        self.begun.extend_from_slice(head);
        let (whole, tail) = rest.split_at(rest.len() / CHUNK * CHUNK);
        let full = self.begun.len() == CHUNK;
        let begun = full.then_some(&self.begun[..]);
        let chunks: Vec<&[u8]> = begun.into_iter().chain(whole.chunks_exact(CHUNK)).collect();
        let took = Stopwatch::start();
        compress(&mut self.lanes, &chunks)?;
        self.spent += took.elapsed();
        if full {
            self.begun.clear();
        }
        self.begun.extend_from_slice(tail);
        self.put(sink)
    }

    fn flush(&mut self, sink: &mut dyn PageFile) -> Result<()> {
        if !self.begun.is_empty() {
            let took = Stopwatch::start();
            compress(&mut self.lanes, &[&self.begun])?;
            self.spent += took.elapsed();
            self.begun.clear();
            self.put(sink)?;
        }
        self.output.flush(sink)
    }

    /// Appends the output of all threads, in the order of the chunks.
    fn put(&mut self, sink: &mut dyn PageFile) -> Result<()> {
        for lane in &mut self.lanes {
            self.output.put(&lane.stored, sink)?;
            self.chunks.append(&mut lane.chunks);
            lane.stored.clear();
        }
        Ok(())
    }
}

/// Compresses chunks. Each thread compresses consecutive chunks; the calling thread compresses the first chunks.
fn compress(lanes: &mut [Lane], chunks: &[&[u8]]) -> Result<()> {
    let share = chunks.len().div_ceil(lanes.len()).max(1);
    thread::scope(|scope| {
        let mut work = lanes.iter_mut().zip(chunks.chunks(share));
        let own = work.next();
        for (lane, chunks) in work {
            let thread = thread::Builder::new().name("undying-codec".to_owned());
            let started = thread.spawn_scoped(scope, || lane.compress(chunks));
            started.map_err(|error| sys::Error::new("start a thread", error))?;
        }
        if let Some((lane, chunks)) = own {
            lane.compress(chunks);
        }
        Ok(())
    })
}

impl Lane {
    fn compress(&mut self, chunks: &[&[u8]]) {
        for chunk in chunks {
            let stored = self.compressor.compress(chunk).unwrap_or(chunk);
            self.stored.extend_from_slice(stored);
            self.chunks.push(StoredChunk { length: stored.len() as u32, checksum: Checksum::of(stored) });
        }
    }
}

impl Output {
    fn put(&mut self, mut bytes: &[u8], sink: &mut dyn PageFile) -> Result<()> {
        while !bytes.is_empty() {
            if self.filling.is_none() {
                self.filling = Some(self.free_buffer(sink)?);
            }
            let Some(buffer) = &mut self.filling else { continue };
            let (now, later) = bytes.split_at(bytes.len().min(buffer.len() - self.filled));
            buffer[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == buffer.len() {
                self.flush(sink)?;
            }
        }
        Ok(())
    }

    /// Writes the buffer that is being filled, padded to a whole page.
    fn flush(&mut self, sink: &mut dyn PageFile) -> Result<()> {
        let Some(mut buffer) = self.filling.take() else { return Ok(()) };
        let length = self.filled.next_multiple_of(PAGE_BYTES as usize);
        buffer[self.filled..length].fill(0);
        self.filled = 0;
        let offset = ByteCount(self.end);
        self.end += length as u64;
        Ok(sink.submit(buffer, ByteCount(0)..ByteCount(length as u64), offset)?)
    }

    fn free_buffer(&mut self, sink: &mut dyn PageFile) -> Result<PageBuffer> {
        if let Some(buffer) = self.free.pop() {
            return Ok(buffer);
        }
        if self.made >= BUFFERS_MAX
            && let Some(buffer) = sink.wait_done()?
        {
            return Ok(buffer);
        }
        self.made += 1;
        PageBuffer::new(self.size).map_err(Error::from)
    }
}
