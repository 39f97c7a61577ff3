//! Reading many pages fast: large runs, several threads, every extent checked before it is handed out.
//!
//! Owns: joining extents that are neighbours in a segment into runs; sharing the runs among threads.
//! Invariants: each extent is handed out once, checked; after the first error no further run is begun.
//! Does not: put the pages anywhere; the caller does, on the thread that read them.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use image::{Extent, SegmentId};
use model::ByteCount;
use sys::page_buffer::PageBuffer;

use crate::error::{Error, Result};
use crate::reader::{ImageReader, check_pages};

/// Bytes that one read fetches at most: long enough for the device, and what one huge page of buffer holds.
/// Read through the page cache: measured with `examples/throughput.rs`, O_DIRECT is no faster cold.
const RUN_BYTES_MAX: u64 = 2 << 20;

/// The longest stretch of superseded pages that is read and thrown away rather than skipped: reading it
/// costs less than another request.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// How many runs ahead of the readers the kernel is told what comes.
const RUNS_AHEAD: usize = 8;

/// Checked pages, as they are handed out.
#[derive(Debug)]
pub struct LoadedRun<'a> {
    extents: &'a [Extent],
    start: u64,
    bytes: &'a [u8],
}

/// Extents of one segment that one read fetches.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    segment: SegmentId,
    start: u64,
    end: u64,
    extents: &'a [Extent],
}

impl<'a> LoadedRun<'a> {
    /// The extents and their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&'a Extent, &'a [u8])> {
        let (start, bytes) = (self.start, self.bytes);
        self.extents.iter().filter_map(move |extent| {
            let (_, place) = extent.stored()?;
            let bytes = bytes.get((place.start - start) as usize..(place.end - start) as usize)?;
            Some((extent, bytes))
        })
    }
}

impl ImageReader {
    /// Reads the stored pages among these extents of this image's index, on so many threads, the calling one
    /// included, and hands them to `sink` in no particular order, each run on the thread that read it. Zero
    /// extents are left to the caller.
    ///
    /// # Errors
    ///
    /// The first error of reading, checking or `sink`.
    pub fn load<E>(
        &self,
        extents: &[Extent],
        threads: NonZeroUsize,
        sink: impl Fn(&LoadedRun<'_>) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<(), E>
    where
        E: From<Error> + Send,
    {
        let mut stored: Vec<Extent> =
            extents.iter().filter(|extent| extent.stored().is_some()).copied().collect();
        stored.sort_unstable_by_key(place);
        let runs = join(&stored);
        let threads = threads.get().min(runs.len());
        let buffer_size = ByteCount(runs.iter().map(|run| run.end - run.start).max().unwrap_or(0));
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let load = Load { reader: self, runs: &runs, buffer_size, next, failed };
        runs.iter().take(RUNS_AHEAD).for_each(|run| load.announce(run));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| load.work(&sink));
            }
            load.work(&sink);
        });
        load.failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

struct Load<'a, E> {
    reader: &'a ImageReader,
    runs: &'a [Run<'a>],
    buffer_size: ByteCount,
    next: AtomicUsize,
    failed: Mutex<Option<E>>,
}

impl<E: From<Error>> Load<'_, E> {
    /// Takes runs until there are none left.
    fn work(&self, sink: &impl Fn(&LoadedRun<'_>) -> std::result::Result<(), E>) {
        let mut buffer = None;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = self.runs.get(number) else { return };
            if let Some(later) = self.runs.get(number + RUNS_AHEAD) {
                self.announce(later);
            }
            let done = self.fetch(run, &mut buffer).map_err(E::from).and_then(|loaded| sink(&loaded));
            if let Err(error) = done {
                self.next.store(self.runs.len(), Ordering::Relaxed);
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(error);
                return;
            }
        }
    }

    fn fetch<'b>(&self, run: &Run<'b>, buffer: &'b mut Option<PageBuffer>) -> Result<LoadedRun<'b>> {
        let buffer = match buffer {
            Some(buffer) => buffer,
            None => buffer.insert(PageBuffer::new(self.buffer_size)?),
        };
        let segment = self.reader.segment(run.segment)?;
        let bytes = &mut buffer[..(run.end - run.start) as usize];
        segment.pages.read(bytes, ByteCount(run.start))?;
        let loaded = LoadedRun { extents: run.extents, start: run.start, bytes };
        for (extent, bytes) in loaded.iter() {
            check_pages(segment, extent, bytes)?;
        }
        Ok(loaded)
    }

    fn announce(&self, run: &Run<'_>) {
        if let Ok(segment) = self.reader.segment(run.segment) {
            segment.pages.will_need(ByteCount(run.start), ByteCount(run.end - run.start));
        }
    }
}

/// Sorts by place in the segments.
fn place(extent: &Extent) -> (SegmentId, u64) {
    extent.stored().map_or((SegmentId(0), 0), |(segment, bytes)| (segment, bytes.start))
}

/// Cuts sorted extents into runs.
fn join(extents: &[Extent]) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    let mut first = 0;
    for (number, extent) in extents.iter().enumerate() {
        let Some((segment, bytes)) = extent.stored() else { continue };
        match runs.last_mut() {
            Some(run) if run.takes(segment, &bytes) => {
                run.end = run.end.max(bytes.end);
                run.extents = &extents[first..=number];
            }
            _ => {
                first = number;
                let extents = &extents[number..=number];
                runs.push(Run { segment, start: bytes.start, end: bytes.end, extents });
            }
        }
    }
    runs
}

impl Run<'_> {
    fn takes(&self, segment: SegmentId, bytes: &std::ops::Range<u64>) -> bool {
        self.segment == segment
            && bytes.start <= self.end.saturating_add(GAP_BYTES_MAX)
            && bytes.end.max(self.end) - self.start <= RUN_BYTES_MAX
    }
}
