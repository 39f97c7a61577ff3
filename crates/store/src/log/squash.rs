//! Rewrites the newest checkpoint of a log without a writer, with pages in order of address and the index in one part.
//! Alternatively rewrites only the root (description) of the newest checkpoint, to remove older checkpoints.
//!
//! Owns: the order in which `squash` reads and writes pages.
//! Invariants: the previous checkpoint stays complete until the new checkpoint is durable. Older checkpoints that are
//! kept remain unchanged, whenever the power fails. A log with a writer is not changed; the writer has its own policy.
//! Does not: decide when to run. Compaction bounds the size of a log without this module.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};

use image::{Extent, Source};
use model::{ByteCount, PAGE_BYTES, PageCount, Sequence};
use sys::Errno;

use super::open::{self, Opened};
use super::options::{LogOptions, LogThreads, RetentionPolicy, SizeLimit};
use super::read;
use super::table::PageContent;
use super::writer_thread::{OpenEpoch, WriterThread};
use crate::batch::PageBatch;
use crate::error::{Error, Result};
use crate::load::THREADS;
use crate::lock::locked;
use crate::medium::Medium;
use crate::meta::CommitMeta;
use crate::reader::ImageReader;
use crate::service::StorageService;
use crate::stock::BufferStock;

/// The number of pages that are read before they are written in order. In an old log, adjacent pages are far apart.
/// Reading this number of pages (32 MiB) keeps the device busy.
const WINDOW_PAGES: u64 = 8192;

/// The number of buffers for writing.
const BUFFERS: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not zero");

/// The result of `squash`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Squashed {
    /// The sequence number of the rewritten checkpoint.
    pub sequence: Sequence,
    /// The number of index parts before `squash`: one full index and its deltas. `squash` leaves one part.
    pub parts: usize,
    /// The size of the checkpoint's pages, which were all written once.
    pub bytes: ByteCount,
    /// The size of the log before `squash`.
    pub disk_before: ByteCount,
    /// The size of the log after `squash`. Older checkpoints may still need the old segments.
    pub disk_after: ByteCount,
    /// The number of older checkpoints that remain.
    pub older: usize,
}

/// Rewrites the newest checkpoint of the log in this directory. Returns `None` if the log has no checkpoint.
pub(crate) fn squash(medium: &Arc<dyn Medium>, directory: &Path) -> Result<Option<Squashed>> {
    // All checkpoints are kept here, because only the usual writer of the log applies a retention policy.
    let options = LogOptions {
        buffers: BUFFERS,
        keep: RetentionPolicy::newest(usize::MAX),
        size: SizeLimit::None,
        ..LogOptions::default()
    };
    let Opened { mut writer_thread, lock: _lock, newest } = open_here(medium, directory, options)?;
    let Some(newest) = newest else { return Ok(None) };
    // If the newest checkpoint is damaged, an older checkpoint is not rewritten, because a rewrite would hide the
    // damage.
    if let Some((_, error)) = newest.damaged {
        return Err(error);
    }
    let sequence = newest.slot.sequence;
    let path = directory.with_file_name(sequence.to_string());
    let image = read::open(&**medium, &path, directory, sequence)?;
    let image = image.ok_or(Error::NotCommitted(path))?;
    let disk_before = writer_thread.status.disk;
    writer_thread.write_again(&image, sequence)?;
    writer_thread.report();
    let squashed = Squashed {
        sequence,
        parts: newest.root.parts.len(),
        bytes: image.index().stored_pages().bytes(),
        disk_before,
        disk_after: writer_thread.status.disk,
        older: writer_thread.retention.entries().len() - 1,
    };
    writer_thread.active_segment.background_writer.finish();
    Ok(Some(squashed))
}

/// Removes all checkpoints except the newest `keep`, at least one. Returns the sequence numbers of the removed
/// checkpoints.
pub(crate) fn prune(medium: &Arc<dyn Medium>, directory: &Path, keep: usize) -> Result<Vec<Sequence>> {
    let (buffers, service) = (NonZeroUsize::MIN, StorageService::new(BufferStock::new(PageCount(1))));
    let options = LogOptions { buffers, service, size: SizeLimit::None, ..LogOptions::default() };
    let Opened { mut writer_thread, lock: _lock, newest } = open_here(medium, directory, options)?;
    let Some(newest) = newest else { return Ok(Vec::new()) };
    let gone = writer_thread.retention.shorten(keep.max(1));
    if !gone.is_empty() {
        let mut root = newest.root;
        root.kept.retain(|kept| !gone.contains(&kept.sequence));
        // The newest checkpoint stays the same, but gets a new root.
        writer_thread.retention.kept.pop();
        writer_thread.publish(&root)?;
        writer_thread.settle()?;
    }
    writer_thread.active_segment.background_writer.finish();
    Ok(gone)
}

/// Opens a log for writing by the calling thread.
fn open_here(medium: &Arc<dyn Medium>, directory: &Path, options: LogOptions) -> Result<Opened> {
    open::open(medium, directory, &LogOptions { threads: LogThreads::Caller, ..options })
}

impl WriterThread {
    /// Commits a full checkpoint with the pages and the records of `image`. The new checkpoint replaces the newest
    /// checkpoint.
    fn write_again(&mut self, image: &ImageReader, sequence: Sequence) -> Result<()> {
        self.begin(sequence, true);
        let mut buffer = vec![0; (WINDOW_PAGES * PAGE_BYTES) as usize];
        let mut rest = image.index().extents();
        while !rest.is_empty() {
            let (window, later) = rest.split_at(window(rest));
            rest = later;
            read_window(image, window, &mut buffer)?;
            self.append_window(window, &buffer)?;
        }
        let Some(mut epoch) = self.epoch.take() else { return Err(lost(image)) };
        // The new root replaces this entry. Until the new slot is durable, readers find the old root.
        self.retention.kept.pop();
        self.write_commit(&mut epoch, image.records(), CommitMeta::of(image.commit().clone()))?;
        self.settle()
    }

    fn append_window(&mut self, window: &[Extent], bytes: &[u8]) -> Result<()> {
        let mut at = 0;
        for extent in window {
            if extent.source == Source::Zero {
                let Some(OpenEpoch { delta, .. }) = &mut self.epoch else { continue };
                let first = extent.start.get() / PAGE_BYTES;
                let pages = first..first + extent.pages.get();
                pages.for_each(|page| delta.set(extent.space, page, PageContent::Zero));
                continue;
            }
            let mut done = PageCount(0);
            while done < extent.pages {
                let mut batch = self.free_buffer()?;
                done += batch.copy(extent, done, Some(&bytes[at..]));
                self.append(batch)?;
            }
            at += extent.pages.bytes().get() as usize;
        }
        Ok(())
    }

    /// Returns a free buffer. Waits for the device if all buffers are being written.
    fn free_buffer(&mut self) -> Result<PageBatch> {
        loop {
            self.collect()?;
            if let Some(batch) = self.shared.pool.take_now()? {
                return Ok(batch);
            }
            if !self.active_segment.wait()? {
                return Err(sys::Error::new("get a buffer back", Errno::EINVAL).into());
            }
        }
    }
}

/// Returns how many of these extents fit into a window, at least one.
fn window(extents: &[Extent]) -> usize {
    let mut pages = 0;
    let fits = |extent: &&Extent| {
        pages += if extent.source == Source::Zero { 0 } else { extent.pages.get() };
        pages <= WINDOW_PAGES
    };
    extents.iter().take_while(fits).count().max(1)
}

/// Reads the stored pages of the extents in `window` into `buffer`, in order.
fn read_window(image: &ImageReader, window: &[Extent], buffer: &mut [u8]) -> Result<()> {
    let mut places = Vec::with_capacity(window.len());
    let mut at = 0;
    for extent in window.iter().filter(|extent| extent.source != Source::Zero) {
        places.push(((extent.space, extent.start), at));
        at += extent.pages.bytes().get() as usize;
    }
    let buffer = Mutex::new(buffer);
    image.load(window, THREADS, |run| {
        let mut buffer = locked(&buffer);
        for (extent, bytes) in run.iter() {
            let key = (extent.space, extent.start);
            let found = places.binary_search_by_key(&key, |(key, _)| *key);
            let (_, at) = found.ok().and_then(|place| places.get(place)).ok_or_else(|| lost(image))?;
            buffer[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    })
}

/// Returns the error for a state that cannot occur: a known extent or epoch is missing.
fn lost(image: &ImageReader) -> Error {
    sys::Error::path("keep track of", image.path(), Errno::EINVAL).into()
}
