//! Writes one image: pages as they arrive, then records and index, then the commit record.
//!
//! Owns: the order in which the files of an image are written; the content of the commit record.
//! Invariants: the image is not visible before `finish`. Dropping the writer, or an error at any step, leaves no files
//! behind. All files are durable before the directory gets its final name.
//! Does not: choose a sequence number or a directory; `Store` or the caller does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{Checksum, Commit, ImageKind, Packing, RecordSet, SealedFile, SegmentFile, SegmentId};
use model::{ByteCount, PAGE_BYTES};
use sys::clock::Stopwatch;

use crate::backend::directory::Directory;
use crate::batch::PageChange;
use crate::error::{Error, Result};
use crate::extents;
use crate::layout::{COMMIT_FILE, INDEX_FILE, RECORDS_FILE, WriteOptions, parent};
use crate::log::{LogCommitted, Ticket};
use crate::medium::{Medium, NewFile};
use crate::meta::{CommitMeta, WriteTimings};
use crate::pages::{Finished, Order, PagesWriter};
use crate::pool::PagePool;
use crate::segment::EndedSegment;
use crate::sink::{OpenCheckpoint, PageSink};
use crate::staging::{self, Staging};

/// The id of the only segment of an image.
const SEGMENT: SegmentId = SegmentId(0);
const SEGMENT_FILE: &str = "pages-0.seg";
const CHUNKS_FILE: &str = "chunks-0";

/// Writes one image. Copiers in several threads may share the writer by reference.
#[derive(Debug)]
pub struct ImageWriter {
    /// This field is dropped before `staging`, so that no write goes to a directory that is being removed.
    pages: PagesWriter,
    staging: Staging,
    medium: Arc<dyn Medium>,
}

impl ImageWriter {
    /// Begins an image that will be the directory `path`. `path` must not exist, or must be an empty directory.
    ///
    /// # Errors
    ///
    /// Returns `Exists`, or an error of creating the directory.
    pub fn create(path: &Path, options: WriteOptions) -> Result<Self> {
        Self::create_on(Arc::new(Directory::default()), path, options)
    }

    /// Begins an image on the given medium. Fails as `create` does.
    pub fn create_on(medium: Arc<dyn Medium>, path: &Path, options: WriteOptions) -> Result<Self> {
        staging::sweep(&*medium, parent(path))?;
        let staging = Staging::create(Arc::clone(&medium), path)?;
        let segment = staging.path.join(SEGMENT_FILE);
        let pages = PagesWriter::new(Arc::clone(&medium), segment, options);
        Ok(Self { pages, staging, medium })
    }

    /// Writes the remaining pages, makes all files durable, and makes the image visible.
    ///
    /// # Errors
    ///
    /// Returns the first error of any step. After an error, no files remain.
    pub fn finish(self, records: &RecordSet, meta: CommitMeta) -> Result<LogCommitted> {
        let Self { pages, staging, medium } = self;
        let took = Stopwatch::start();
        let files = Files { medium: &*medium, directory: &staging.path };
        let (finished, sealed) = pages.end(|| files.seal(RECORDS_FILE, records.encode()))?;
        let (records_file, records) = sealed?;
        let index = extents::index(&finished.pages, |block| {
            (SEGMENT, ByteCount(u64::from(block.get()) * PAGE_BYTES))
        });
        let pages = index.map_err(|error| Error::encoding(&files.path(INDEX_FILE), error))?;
        let (index_file, index) = files.seal(INDEX_FILE, pages.encode())?;
        let (chunks_file, segment) = files.seal_chunks(&finished)?.unzip();
        let chunks_file = chunks_file.flatten();
        let bytes = records.length + index.length + segment.as_ref().map_or(ByteCount(0), SegmentFile::bytes);
        let segments = segment.into_iter().collect();
        let commit = meta.record(ImageKind::Full, pages.pages(), bytes, records, index, segments);
        let written = [records_file, index_file].into_iter().chain(chunks_file);
        files.commit(&commit, finished.segment, written)?;
        staging.publish()?;
        let timings = WriteTimings { commit: took.elapsed(), ..finished.timings };
        Ok(LogCommitted::alone(commit, timings))
    }
}

impl PageSink for ImageWriter {
    fn pool(&self) -> &PagePool {
        &self.pages.pool
    }

    fn apply(&self, change: PageChange) -> Result<()> {
        self.pages.send(Order::Change(change))
    }
}

impl OpenCheckpoint for ImageWriter {
    /// Commits the image, and returns when the image is durable.
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket> {
        self.finish(&records, meta).map(Ticket::answered)
    }
}

/// The chunk table file of a compressed segment, and the entry of the segment for the commit record.
type Sealed = (Option<Box<dyn NewFile>>, SegmentFile);

/// The directory in which small files are created.
pub(crate) struct Files<'a> {
    pub(crate) medium: &'a dyn Medium,
    pub(crate) directory: &'a Path,
}

impl Files<'_> {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file and starts writeback without a sync. Returns the file and its entry for the commit record.
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

    /// Writes the commit record, and makes the segment, the files `written` and the commit record durable.
    pub(crate) fn commit(
        &self,
        commit: &Commit,
        segment: Option<EndedSegment>,
        written: impl IntoIterator<Item = Box<dyn NewFile>>,
    ) -> Result<()> {
        let (commit_file, _) = self.seal(COMMIT_FILE, commit.encode())?;
        // All syncs follow the last write, because the first sync then also writes most data of the other files. The
        // order of the syncs does not matter, because the directory gets its final name later.
        segment.map_or(Ok(()), |segment| segment.sink.finish(segment.length))?;
        for mut file in written.into_iter().chain([commit_file]) {
            file.sync()?;
        }
        Ok(())
    }

    /// Writes the chunk table if the segment is compressed. Returns the table file and the segment's entry for the
    /// commit record. Returns `None` if the image has no segment.
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
