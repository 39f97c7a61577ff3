//! Writing one image: pages while they come, then records and index, then the commit record.
//!
//! Owns: the order in which an image's files are written, the commit record's content.
//! Invariants: nothing is visible before `finish`; dropping the writer, or an error at any step, leaves
//! nothing behind; all files are durable before the directory gets its name.
//! Does not: choose a sequence number or a place; `Store` or the caller does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{Checksum, ImageKind, Packing, RecordSet, SealedFile, SegmentFile, SpaceId};
use model::{AddressRange, ByteCount, PageCount};
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

use crate::backend::directory::Directory;
use crate::batch::PageBatch;
use crate::error::{Error, Result};
use crate::layout::{COMMIT_FILE, INDEX_FILE, RECORDS_FILE, WriteOptions, parent};
use crate::log::{LogCommitted, Ticket};
use crate::medium::{Medium, NewFile};
use crate::meta::{CommitMeta, WriteTimings};
use crate::pages::{Finished, Order, PagesWriter, SEGMENT};
use crate::sink::{OpenCheckpoint, PageSink};
use crate::staging::{self, Staging};

const SEGMENT_FILE: &str = "pages-0.seg";
const CHUNKS_FILE: &str = "chunks-0";

/// An image being written. Copiers on several threads may share it by reference.
#[derive(Debug)]
pub struct ImageWriter {
    /// Before `staging`, so that nothing writes into a directory that is being removed.
    pages: PagesWriter,
    staging: Staging,
    medium: Arc<dyn Medium>,
}

impl ImageWriter {
    /// Begins an image that is to be a directory at `path`, which must not exist, or be an empty directory.
    ///
    /// # Errors
    ///
    /// `Exists`; or what kept the directory from being created.
    pub fn create(path: &Path, options: WriteOptions) -> Result<Self> {
        Self::create_on(Arc::new(Directory::default()), path, options)
    }

    /// As `create`, on any medium. Fails as `create`.
    pub fn create_on(medium: Arc<dyn Medium>, path: &Path, options: WriteOptions) -> Result<Self> {
        staging::sweep(&*medium, parent(path))?;
        let staging = Staging::create(Arc::clone(&medium), path)?;
        let segment = staging.path.join(SEGMENT_FILE);
        let pages = PagesWriter::new(Arc::clone(&medium), segment, options);
        Ok(Self { pages, staging, medium })
    }

    /// Writes what is left, makes everything durable and the image visible.
    ///
    /// # Errors
    ///
    /// What went wrong at any step; nothing is left behind then.
    pub fn finish(self, records: &RecordSet, meta: CommitMeta) -> Result<LogCommitted> {
        let Self { pages, staging, medium } = self;
        let took = Stopwatch::start();
        let ending = pages.end()?;
        let files = Files { medium: &*medium, directory: &staging.path };
        // While the last pages are on their way to the device.
        let sealed = files.seal(RECORDS_FILE, records.encode());
        let finished = ending.wait()?;
        let (mut records_file, records) = sealed?;
        let pages = finished.map.index().map_err(|error| Error::encoding(&files.path(INDEX_FILE), error))?;
        let (mut index_file, index) = files.seal(INDEX_FILE, pages.encode())?;
        let (chunks_file, segment) = files.seal_chunks(&finished)?.unzip();
        let chunks_file = chunks_file.flatten();
        let bytes = records.length + index.length + segment.as_ref().map_or(ByteCount(0), SegmentFile::bytes);
        let segments = segment.into_iter().collect();
        let commit = meta.record(ImageKind::Full, pages.pages(), bytes, records, index, segments);
        let (mut commit_file, _) = files.seal(COMMIT_FILE, commit.encode())?;
        // Together rather than each after its write: the first sync then carries most of the others. The
        // order among them decides nothing, as the directory gets its name after all.
        if let Some(segment) = finished.segment {
            segment.sink.finish(segment.length)?;
        }
        records_file.sync()?;
        index_file.sync()?;
        if let Some(mut chunks_file) = chunks_file {
            chunks_file.sync()?;
        }
        commit_file.sync()?;
        staging.publish()?;
        let timings = WriteTimings { commit: took.elapsed(), ..finished.timings };
        Ok(LogCommitted::alone(commit, timings))
    }
}

impl PageSink for ImageWriter {
    /// Waits until a buffer is free; one who already holds all of them, unappended, waits for ever. What is copied inside
    /// a pause goes into batches taken before, or into `PageBatch::over` own buffers.
    fn buffer(&self) -> Result<PageBatch> {
        // Now rather than with the first batch, which may come inside a pause.
        self.pages.begin()?;
        self.pages.pool.take(|| Ok(())).map(PageBatch::unlent)
    }

    fn buffer_for(&self, pages: PageCount) -> Result<PageBatch> {
        if pages >= self.buffer_pages() {
            return self.buffer();
        }
        Ok(PageBatch::over(PageBuffer::new(pages.bytes())?))
    }

    fn append(&self, batch: PageBatch) -> Result<()> {
        self.pages.send(Order::Pages(batch))
    }

    /// Not of the pool: the worker needs all of it.
    fn spare(&self) -> Result<PageBatch> {
        Ok(PageBatch::over(PageBuffer::new(self.pages.pool.size)?))
    }

    fn buffer_pages(&self) -> PageCount {
        self.pages.pool.buffer_pages()
    }

    fn discard(&self, space: SpaceId, range: AddressRange) -> Result<()> {
        self.pages.send(Order::Discard(space, range))
    }
}

impl OpenCheckpoint for ImageWriter {
    /// Returns when it is durable.
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket> {
        self.finish(&records, meta).map(Ticket::answered)
    }
}

/// What a commit record says of a segment, and the file of its chunks if it is compressed.
type Sealed = (Option<Box<dyn NewFile>>, SegmentFile);

/// The directory that small files go to.
pub(crate) struct Files<'a> {
    pub(crate) medium: &'a dyn Medium,
    pub(crate) directory: &'a Path,
}

impl Files<'_> {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file, not yet durable, and gives what the commit record says of it.
    pub(crate) fn seal(
        &self,
        name: &str,
        encoded: image::Result<Vec<u8>>,
    ) -> Result<(Box<dyn NewFile>, SealedFile)> {
        let bytes = encoded.map_err(|error| Error::encoding(&self.path(name), error))?;
        let mut file = self.medium.create_file(&self.path(name))?;
        file.write(&bytes)?;
        file.start_sync()?;
        let (length, checksum) = (ByteCount(bytes.len() as u64), Checksum::of(&bytes));
        Ok((file, SealedFile { name: name.to_owned(), length, checksum }))
    }

    /// What the commit record says of the segment, and the file of its chunks if it is compressed; `None` without
    /// a segment.
    fn seal_chunks(&self, finished: &Finished) -> Result<Option<Sealed>> {
        let Some(segment) = &finished.segment else { return Ok(None) };
        let (name, length) = (SEGMENT_FILE.to_owned(), segment.length);
        let plain = SegmentFile { id: SEGMENT, name, length, packing: None };
        let Some((table, codec)) = segment.chunks.as_ref().zip(finished.codec) else {
            return Ok(Some((None, plain)));
        };
        let (file, chunks) = self.seal(CHUNKS_FILE, table.encode())?;
        let packing = Some(Packing { codec: codec.name().to_owned(), chunks });
        Ok(Some((Some(file), SegmentFile { packing, ..plain })))
    }
}
