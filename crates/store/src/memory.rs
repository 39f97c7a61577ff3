//! Keeps checkpoints in the memory of this process. These checkpoints serve for rollback, and are lost when this
//! process ends. Each commit produces a set of buffers with pages, and an index that refers to these buffers.
//!
//! Owns: the buffers that each checkpoint needs; compaction (moving live pages out of sparse buffers).
//! Invariants: a kept checkpoint never changes. A buffer is reused only when no checkpoint and no reader needs it. The
//! number of buffers never exceeds the limit. Nothing is computed in a pause: the pages stay in the buffers of the
//! copiers. The commit finds zero pages, and computes checksums and the index.
//! Does not: survive the end of this process.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use image::{Checksum, Commit, Extent, ImageKind, PageIndex, PageMap, RecordSet, SealedFile, SegmentId};
use model::{ByteCount, PAGE_BYTES, PageCount, Sequence};
use sys::Errno;
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

use crate::batch::{PageBatch, PageChange};
use crate::error::{Error, Result};
use crate::lock::locked;
use crate::log::{LogCommitted, Ticket};
use crate::medium::PageSource;
use crate::meta::{CommitMeta, WriteTimings};
use crate::packer::pack_into;
use crate::pool::{PagePool, Waits};
use crate::reader::{ImageReader, Segment};
use crate::scheduler::Urgency;
use crate::sink::{Base, CheckpointSink, OpenCheckpoint, PageSink};
use crate::stock::BufferStock;

/// A commit compacts if the number of buffers exceeds a limit. The limit is twice the number of buffers that the live
/// pages need, plus `SLACK`.
const SLACK: usize = 4;

/// Limits for the memory of checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// The number of pages in a buffer.
    pub buffer_pages: PageCount,
    /// The maximum number of buffers of all kept checkpoints and the checkpoint in progress together.
    pub buffers_max: usize,
    /// The number of newest checkpoints that are kept.
    pub keep: NonZeroUsize,
}

impl Default for MemoryOptions {
    /// Returns limits for two checkpoints in at most 1 GiB, in buffers of one huge page. While one checkpoint is
    /// taken, the previous checkpoint is available for rollback.
    fn default() -> Self {
        const KEEP: NonZeroUsize = NonZeroUsize::new(2).expect("2 is not zero");
        Self { buffer_pages: PageCount(512), buffers_max: 512, keep: KEEP }
    }
}

/// Checkpoints of one subject in memory. A clone refers to the same checkpoints.
#[derive(Clone, Debug)]
pub struct Memory {
    pool: Arc<PagePool>,
    kept: Arc<Mutex<VecDeque<Kept>>>,
    keep: usize,
}

/// A checkpoint that is being copied into memory.
#[derive(Debug)]
struct MemoryEpoch {
    memory: Memory,
    sequence: Sequence,
    base: Base,
    changes: Mutex<Vec<PageChange>>,
}

/// A committed checkpoint.
#[derive(Clone, Debug)]
struct Kept {
    commit: Commit,
    records: RecordSet,
    index: PageIndex,
    pages: Pages,
}

/// The pages of a checkpoint. Each buffer is a segment.
#[derive(Clone, Debug, Default)]
struct Pages {
    map: PageMap,
    buffers: BTreeMap<SegmentId, Arc<Filled>>,
    next: u32,
}

/// A buffer that checkpoints or readers share. The buffer returns to the pool when the last reference is dropped.
#[derive(Debug)]
struct Filled {
    buffer: Option<PageBuffer>,
    pool: Arc<PagePool>,
}

impl Memory {
    /// Creates an empty set of checkpoints.
    #[must_use]
    pub fn new(options: MemoryOptions) -> Self {
        let pool = Arc::new(PagePool::new(
            options.buffers_max,
            BufferStock::new(options.buffer_pages),
            Waits::Never,
        ));
        Self { pool, kept: Arc::default(), keep: options.keep.get() }
    }

    /// Opens a checkpoint for reading. Returns `None` if the checkpoint is not kept. The reader stays valid after the
    /// checkpoint was removed.
    ///
    /// # Errors
    ///
    /// Fails if the index of the checkpoint contradicts its buffers.
    pub fn image(&self, sequence: Sequence) -> Result<Option<ImageReader>> {
        let kept = locked(&self.kept);
        let Some(found) = kept.iter().find(|kept| kept.commit.sequence == sequence) else { return Ok(None) };
        let path = path_of(sequence);
        let segments = found
            .pages
            .buffers
            .iter()
            .map(|(id, filled)| Ok((*id, Segment::new(path.clone(), Box::new(Arc::clone(filled)))?)));
        let (commit, records, index) = (found.commit.clone(), found.records.clone(), found.index.clone());
        ImageReader::from_parts(path.clone(), commit, records, index, segments.collect::<Result<_>>()?)
            .map(Some)
    }

    /// Returns the memory of all buffers that checkpoints and readers use.
    #[must_use]
    pub fn size(&self) -> ByteCount {
        self.pool.in_use()
    }
}

impl CheckpointSink for Memory {
    /// Begins a checkpoint. If no checkpoint is kept, the new checkpoint has no initial pages, also with
    /// `Base::Newest`.
    fn begin(&self, sequence: Sequence, base: Base, _: Urgency) -> Result<Option<Box<dyn OpenCheckpoint>>> {
        if locked(&self.kept).back().is_some_and(|newest| sequence <= newest.commit.sequence) {
            return Err(Error::Exists(path_of(sequence)));
        }
        let epoch = MemoryEpoch { memory: self.clone(), sequence, base, changes: Mutex::default() };
        Ok(Some(Box::new(epoch)))
    }
}

impl PageSink for MemoryEpoch {
    fn pool(&self) -> &PagePool {
        &self.memory.pool
    }

    fn apply(&self, change: PageChange) -> Result<()> {
        locked(&self.changes).push(change);
        Ok(())
    }
}

impl OpenCheckpoint for MemoryEpoch {
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket> {
        let mut took = Stopwatch::start();
        let Self { memory, sequence, base, changes } = *self;
        let newest =
            locked(&memory.kept).back().filter(|_| base == Base::Newest).map(|kept| kept.pages.clone());
        let kind = if newest.is_some() { ImageKind::Delta } else { ImageKind::Full };
        let mut pages = newest.unwrap_or_default();
        for change in changes.into_inner().unwrap_or_else(PoisonError::into_inner) {
            match change {
                PageChange::Pages(batch) => pages.enter(batch, &memory.pool)?,
                PageChange::Discard(space, range) => pages.map.discard(space, range),
            }
        }
        let index = pages.settle(&memory.pool)?;
        let hash = took.lap();
        // The fields for files describe an empty file, because a checkpoint in memory has no files.
        let file = SealedFile { name: PLACE.to_owned(), length: ByteCount(0), checksum: Checksum::default() };
        let bytes = ByteCount(pages.live(&index).values().sum::<u64>() * PAGE_BYTES);
        let meta = CommitMeta { sequence, ..meta };
        let commit = meta.record(kind, index.pages(), bytes, file.clone(), file, Vec::new());
        let timings = WriteTimings { hash, commit: hash + took.lap(), ..WriteTimings::default() };
        let ticket = Ticket::answered(LogCommitted::alone(commit.clone(), timings));
        let mut kept = locked(&memory.kept);
        kept.push_back(Kept { commit, records, index, pages });
        if kept.len() > memory.keep {
            kept.pop_front();
        }
        Ok(ticket)
    }
}

impl Pages {
    /// Adds the pages of a batch (a filled buffer) to the page map, and keeps the buffer. Gives the buffer back if all
    /// pages are zero pages.
    fn enter(&mut self, batch: PageBatch, pool: &Arc<PagePool>) -> Result<()> {
        let (mut buffer, pieces) = pool.parts_of(batch);
        let id = SegmentId(self.next);
        if pack_into(&mut self.map, id, 0, &mut buffer, &pieces) == PageCount(0) {
            pool.give(buffer);
            return Ok(());
        }
        self.next = self.next.checked_add(1).ok_or_else(exhausted)?;
        self.buffers.insert(id, Arc::new(Filled { buffer: Some(buffer), pool: Arc::clone(pool) }));
        Ok(())
    }

    /// Returns the index, and frees the buffers without live pages. If the remaining buffers are too many, moves the
    /// pages of sparse buffers into new buffers.
    fn settle(&mut self, pool: &Arc<PagePool>) -> Result<PageIndex> {
        let index = self.index()?;
        let live = self.live(&index);
        let pages: u64 = live.values().sum();
        let each = pool.buffer_pages().get();
        if self.buffers.len() <= 2 * pages.div_ceil(each) as usize + SLACK {
            return Ok(index);
        }
        let mut batch = pool.buffer()?;
        for extent in index.extents() {
            let Some((id, bytes)) = extent.stored().filter(|(id, _)| live[id] < each / 2) else { continue };
            let Some(from) = self.buffers.get(&id).cloned() else { continue };
            if extent.pages > batch.room() {
                self.enter(std::mem::replace(&mut batch, pool.buffer()?), pool)?;
            }
            if let Some(place) = batch.push(extent.space, extent.start, extent.pages) {
                from.read(place, ByteCount(bytes.start))?;
            }
        }
        self.enter(batch, pool)?;
        self.index()
    }

    /// Returns the index of the current pages, and frees the buffers without live pages.
    fn index(&mut self) -> Result<PageIndex> {
        let index = self.map.index().map_err(|error| Error::encoding(&PathBuf::from(PLACE), error))?;
        let live = self.live(&index);
        self.buffers.retain(|id, _| live.contains_key(id));
        Ok(index)
    }

    /// Returns the number of live pages in each buffer. Omits buffers without live pages.
    fn live(&self, index: &PageIndex) -> BTreeMap<SegmentId, u64> {
        let mut live = BTreeMap::new();
        for (id, bytes) in index.extents().iter().filter_map(Extent::stored) {
            *live.entry(id).or_default() += (bytes.end - bytes.start) / PAGE_BYTES;
        }
        live
    }
}

impl PageSource for Arc<Filled> {
    fn length(&self) -> sys::Result<ByteCount> {
        Ok(self.buffer.as_ref().map_or(ByteCount(0), PageBuffer::size))
    }

    fn read(&self, bytes: &mut [u8], offset: ByteCount) -> sys::Result<()> {
        let from = offset.get() as usize;
        let found = self.buffer.as_ref().and_then(|buffer| buffer.get(from..from.checked_add(bytes.len())?));
        bytes.copy_from_slice(
            found.ok_or_else(|| sys::Error::new("read a checkpoint in memory", Errno::SHORT))?,
        );
        Ok(())
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give(buffer);
        }
    }
}

/// The name that is used where a commit record needs a file name.
const PLACE: &str = "memory";

/// Returns the path that errors show for a checkpoint.
fn path_of(sequence: Sequence) -> PathBuf {
    PathBuf::from(format!("{PLACE}@{sequence}"))
}

fn exhausted() -> Error {
    Error::Full(sys::Error::new("keep a checkpoint in memory", rustix::io::Errno::NOMEM))
}
