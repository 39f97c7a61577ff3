//! The active segment: the end of a log, to which all data is appended.
//!
//! Owns: the active segment, its next free block, and its slots. Buffers for slots and blobs; a blob is a checksummed
//! byte sequence, for example an index part.
//! Invariants: a block is written once, except slots, and blocks of an open epoch whose page was copied again. A sync
//! covers every segment that was written since the previous sync. A buffer returns to its owner when the write of the
//! buffer is complete.
//! Does not: interpret pages or blobs.

use std::path::{Path, PathBuf};

use image::{Blob, BlobPiece, Checksum, LOG_BLOCK_BYTES, LogPlace, LogSegment};
use model::{ByteCount, PageCount};
use sys::page_buffer::PageBuffer;

use super::background_writer::BackgroundWriter;
use super::layout::{FIRST_BLOCK, SLOTS, segment_path};
use crate::error::Result;
use crate::medium::PageFile;
use crate::stock::BufferStock;

const BLOCK: usize = LOG_BLOCK_BYTES as usize;

/// The maximum number of buffers for blobs. One buffer is filled while the second buffer is written.
const STREAMS_MAX: usize = 2;

/// The owner of a buffer that is being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// The pool that lends buffers to copiers.
    Pool,
    /// The cleaner, which moves pages for compaction.
    Cleaner,
    Stream,
    Slot,
}

/// The active segment with its buffers.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub(super) directory: PathBuf,
    pub(super) background_writer: BackgroundWriter,
    active: Option<Active>,
    /// The files with data that is not synced, and the files of the open epoch. The last file is the active segment.
    files: Vec<UnsyncedSegment>,
    stream: Option<Stream>,
    owners: Vec<(usize, Owner)>,
    streams: StreamBuffers,
    slots: Vec<PageBuffer>,
    /// Buffers of the pool and the cleaner whose writes are complete.
    pub(super) returned: Vec<(Owner, PageBuffer)>,
    /// The number of bytes that were appended so far, including slots.
    pub(super) written: u64,
    /// The number of blocks that wasted copies of one checkpoint may occupy.
    pub(super) wasted_max: PageCount,
}

#[derive(Debug)]
struct UnsyncedSegment {
    number: LogSegment,
    file: Box<dyn PageFile>,
    /// Whether the segment was written since the last sync.
    is_dirty: bool,
}

#[derive(Debug)]
struct Active {
    number: LogSegment,
    /// The number of blocks, including the header and the slots.
    blocks: u32,
    next: u32,
    slot: u32,
}

/// The buffers for blobs: where they come from, and how many are in use. The delta and the root of an epoch fit into one
/// buffer. A full index of a large subject needs several buffers.
#[derive(Debug)]
struct StreamBuffers {
    stock: BufferStock,
    used: usize,
}

/// A buffer that is being filled with blobs. The buffer will be written to the active segment, beginning at the block
/// `block`.
#[derive(Debug)]
struct Stream {
    buffer: PageBuffer,
    block: u32,
    filled: usize,
    capacity: usize,
}

impl ActiveSegment {
    pub(super) fn new(
        directory: &Path,
        background_writer: BackgroundWriter,
        wasted_max: PageCount,
        stock: BufferStock,
    ) -> Self {
        Self {
            directory: directory.to_path_buf(),
            background_writer,
            active: None,
            files: Vec::new(),
            stream: None,
            owners: Vec::new(),
            streams: StreamBuffers { stock, used: 0 },
            slots: Vec::new(),
            returned: Vec::new(),
            written: 0,
            wasted_max,
        }
    }

    /// Returns the place of the next free block: the active segment, and the block in this segment.
    pub(super) fn place(&self) -> Option<LogPlace> {
        self.active.as_ref().map(|active| LogPlace { segment: active.number, block: active.next })
    }

    /// Appends the first `count` blocks of a buffer. If the active segment has too little space, the blocks are
    /// written as several ranges. For each range, calls `placed` with the first block in the buffer, the number of
    /// blocks, and the place in the log.
    pub(super) fn append(
        &mut self,
        buffer: PageBuffer,
        owner: Owner,
        count: u32,
        mut placed: impl FnMut(u32, u32, LogPlace),
    ) -> Result<()> {
        debug_assert!(self.stream.is_none(), "blobs are flushed before pages follow");
        let (mut buffer, mut done) = (buffer, 0);
        loop {
            let free_blocks = self.free_blocks()?;
            let part = free_blocks.min(count - done);
            let place = self.submit(buffer, owner, done, part)?;
            placed(done, part, place);
            done += part;
            if done == count {
                return Ok(());
            }
            // The segment is full. `take_back` waits for the write of this range, and returns the buffer. The next
            // turn of the loop writes the remaining blocks to the next segment.
            buffer = self.take_back()?;
        }
    }

    /// Reports whether the block at this place can be written again: its segment is not closed yet.
    pub(super) fn can_rewrite(&self, place: LogPlace) -> bool {
        self.files.iter().any(|segment| segment.number == place.segment)
    }

    /// Replaces blocks that were appended before, from `place` on. Fails if [`Self::can_rewrite`] returns false.
    pub(super) fn rewrite(&mut self, bytes: &[u8], place: LogPlace) -> Result<()> {
        let failed = || sys::Error::path("write again to", &self.directory, sys::Errno::EINVAL);
        let found = self.files.iter_mut().find(|segment| segment.number == place.segment);
        let found = found.ok_or_else(failed)?;
        found.is_dirty = true;
        Ok(found.file.rewrite(bytes, place.offset())?)
    }

    /// Appends bytes, and returns the blob that describes the places and the checksum of these bytes.
    pub(super) fn blob(&mut self, bytes: &[u8]) -> Result<Blob> {
        let mut blob = Blob { pieces: Vec::new(), checksum: Checksum::of(bytes) };
        let mut rest = bytes;
        while !rest.is_empty() {
            let (number, stream) = self.stream()?;
            let taken = rest.len().min(stream.capacity - stream.filled);
            let offset = u64::from(stream.block) * LOG_BLOCK_BYTES + stream.filled as u64;
            stream.buffer[stream.filled..stream.filled + taken].copy_from_slice(&rest[..taken]);
            stream.filled += taken;
            let full = stream.filled == stream.capacity;
            rest = &rest[taken..];
            push_piece(&mut blob, number, offset, taken as u64);
            if full {
                self.flush()?;
            }
        }
        Ok(blob)
    }

    /// Writes the partly filled buffer for blobs, padded to whole blocks.
    pub(super) fn flush(&mut self) -> Result<()> {
        let Some(mut stream) = self.stream.take() else { return Ok(()) };
        let blocks = stream.filled.div_ceil(BLOCK);
        stream.buffer[stream.filled..blocks * BLOCK].fill(0);
        self.submit(stream.buffer, Owner::Stream, 0, blocks as u32).map(drop)
    }

    /// Writes the next slot of the active segment. `encode` receives the number of the segment, and returns the
    /// content of the slot.
    pub(super) fn slot(&mut self, encode: impl FnOnce(LogSegment) -> Result<Vec<u8>>) -> Result<()> {
        self.free_blocks()?;
        let mut buffer = match self.slots.pop() {
            Some(buffer) => buffer,
            None => PageBuffer::new(ByteCount(LOG_BLOCK_BYTES))?,
        };
        let Some((active, segment)) = self.active.as_mut().zip(self.files.last_mut()) else { return Ok(()) };
        buffer.copy_from_slice(&encode(active.number)?);
        let offset = ByteCount(u64::from(1 + active.slot % SLOTS) * LOG_BLOCK_BYTES);
        active.slot += 1;
        self.owners.push((buffer.as_ptr().addr(), Owner::Slot));
        segment.is_dirty = true;
        segment.file.submit(buffer, ByteCount(0)..ByteCount(LOG_BLOCK_BYTES), offset)?;
        self.written += LOG_BLOCK_BYTES;
        Ok(())
    }

    /// Makes all data that was written so far durable. Closes the full segments, except segments from `open` on, whose
    /// blocks the open epoch can write again.
    pub(super) fn sync(&mut self, open: Option<LogSegment>) -> Result<()> {
        for segment in &mut self.files {
            if std::mem::take(&mut segment.is_dirty) {
                segment.file.sync()?;
            }
        }
        let full = self.files.len().saturating_sub(1);
        let closed =
            self.files[..full].partition_point(|segment| open.is_none_or(|open| segment.number < open));
        for mut segment in self.files.drain(..closed).collect::<Vec<_>>() {
            while let Some(buffer) = segment.file.wait_done()? {
                self.give_back(buffer);
            }
        }
        self.collect()
    }

    /// Returns the number of free blocks in the active segment.
    pub(super) fn left(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| u64::from(active.blocks - active.next))
    }

    /// Collects the buffers of completed writes.
    pub(super) fn collect(&mut self) -> Result<()> {
        for number in 0..self.files.len() {
            while let Some(buffer) = self.files[number].file.take_done()? {
                self.give_back(buffer);
            }
        }
        Ok(())
    }

    /// Waits until one write is complete. Returns false if no write is in flight.
    pub(super) fn wait(&mut self) -> Result<bool> {
        for number in 0..self.files.len() {
            if let Some(buffer) = self.files[number].file.wait_done()? {
                self.give_back(buffer);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the number of free blocks in the active segment, at least one. Begins a new segment if the active
    /// segment is full.
    fn free_blocks(&mut self) -> Result<u32> {
        if let Some(active) = &self.active
            && active.next < active.blocks
        {
            return Ok(active.blocks - active.next);
        }
        let (number, length, file) = self.background_writer.segment()?;
        let blocks = (length.get() / LOG_BLOCK_BYTES) as u32;
        self.active = Some(Active { number, blocks, next: FIRST_BLOCK, slot: 0 });
        self.files.push(UnsyncedSegment { number, file, is_dirty: false });
        Ok(blocks - FIRST_BLOCK)
    }

    /// Writes blocks of a buffer to the next free blocks of the segment.
    fn submit(&mut self, buffer: PageBuffer, owner: Owner, from: u32, count: u32) -> Result<LogPlace> {
        self.free_blocks()?;
        let failed = || sys::Error::path("append to", &self.directory, sys::Errno::EINVAL);
        let (active, segment) = self.active.as_mut().zip(self.files.last_mut()).ok_or_else(failed)?;
        let place = LogPlace { segment: active.number, block: active.next };
        active.next += count;
        let bytes = |blocks: u32| ByteCount(u64::from(blocks) * LOG_BLOCK_BYTES);
        self.owners.push((buffer.as_ptr().addr(), owner));
        segment.is_dirty = true;
        segment.file.submit(buffer, bytes(from)..bytes(from + count), place.offset())?;
        self.written += bytes(count).get();
        Ok(place)
    }

    /// Waits for the write of the buffer that was submitted last, and returns this buffer.
    fn take_back(&mut self) -> Result<PageBuffer> {
        let wanted = self.owners.last().map(|(address, _)| *address);
        loop {
            let taken = self.returned.iter().position(|(_, buffer)| Some(buffer.as_ptr().addr()) == wanted);
            if let Some(place) = taken {
                return Ok(self.returned.swap_remove(place).1);
            }
            if !self.wait()? {
                let path = self.active.as_ref().map(|active| segment_path(&self.directory, active.number));
                let path = path.unwrap_or_else(|| self.directory.clone());
                return Err(sys::Error::path("wait for a write to", path, sys::Errno::SHORT).into());
            }
        }
    }

    fn give_back(&mut self, mut buffer: PageBuffer) {
        let address = buffer.as_ptr().addr();
        let Some(place) = self.owners.iter().position(|(of, _)| *of == address) else { return };
        match self.owners.remove(place).1 {
            Owner::Stream => {
                self.streams.used -= 1;
                buffer.count_use();
                self.streams.stock.keep(buffer);
            }
            Owner::Slot => self.slots.push(buffer),
            owner => self.returned.push((owner, buffer)),
        }
    }

    /// Returns the number of the active segment, and the stream buffer. The stream buffer has free space.
    fn stream(&mut self) -> Result<(LogSegment, &mut Stream)> {
        if self.stream.is_none() {
            let buffer = self.stream_buffer()?;
            let free_blocks = self.free_blocks()?;
            let capacity = buffer.len().min(free_blocks as usize * BLOCK);
            let block = self.active.as_ref().map_or(0, |active| active.next);
            self.stream = Some(Stream { buffer, block, filled: 0, capacity });
        }
        let number = self.active.as_ref().map(|active| active.number).unwrap_or_default();
        let failed = || sys::Error::path("append to", &self.directory, sys::Errno::EINVAL);
        Ok((number, self.stream.as_mut().ok_or_else(failed)?))
    }

    fn stream_buffer(&mut self) -> Result<PageBuffer> {
        self.collect()?;
        while self.streams.used >= STREAMS_MAX && self.wait()? {}
        let buffer = self.streams.stock.take_or_make()?;
        self.streams.used += 1;
        Ok(buffer)
    }
}

/// Adds a range of bytes to a blob. Extends the last piece if the range follows the last piece directly.
fn push_piece(blob: &mut Blob, segment: LogSegment, offset: u64, length: u64) {
    if let Some(last) = blob.pieces.last_mut()
        && last.segment == segment
        && last.offset.get() + last.length.get() == offset
    {
        last.length += ByteCount(length);
        return;
    }
    blob.pieces.push(BlobPiece { segment, offset: ByteCount(offset), length: ByteCount(length) });
}
