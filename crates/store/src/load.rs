//! Reads many pages of an image fast, and verifies their checksums. Several threads keep many reads in flight. Adjacent
//! extents form a *part*. Parts of one segment, together at most `RUN_BYTES_MAX` bytes, form a *run*. A thread reads and
//! verifies one run at a time.
//!
//! Owns: forming the parts and runs; distributing the runs among threads; verifying all pages of an image.
//! Invariants: each extent is delivered once, after its checksum was verified. After the first error, no thread begins
//! another run. Bytes between the parts are not read. If `verify` succeeds, a restore returns the bytes that were
//! written.
//! Does not: write the pages into a process. The caller's `sink` writes the pages, in the thread that has read the
//! pages.
//!
//! An old log contains about as many superseded pages as live pages, in mixed order. Reading all bytes would read twice
//! the size of the image. With one request for each range of live pages, the number of requests would limit the speed.
//! Therefore a gap of one superseded page is read and discarded, and longer gaps are skipped. See docs/design/0010.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use image::{Extent, SegmentId};
use model::{ByteCount, PAGE_BYTES, PageCount};
use sys::part_reader::PartReader;

use crate::error::{Error, Result};
use crate::lock::locked;
use crate::reader::{ImageReader, check_pages};

/// The maximum size of a run. Reads of this size reach the full speed of the device. The size equals one huge page.
const RUN_BYTES_MAX: u64 = 2 << 20;

/// The longest gap of superseded pages that is read and discarded. Longer gaps are skipped.
const GAP_BYTES_MAX: u64 = PAGE_BYTES;

/// The number of threads that `load` starts for each thread that the caller allows. One thread of a pair waits for the
/// device while the other thread verifies and delivers pages.
const THREADS_EACH: usize = 2;

/// The usual number of threads that compute at the same time, as an argument of `load`.
pub(crate) const THREADS: NonZeroUsize = NonZeroUsize::new(2).expect("2 is not zero");

/// Verified pages of one run.
#[derive(Debug)]
pub struct LoadedRun<'a> {
    extents: &'a [Extent],
    parts: &'a [Range<ByteCount>],
    bytes: &'a [u8],
}

/// The amount of data that was verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyReport {
    /// The number of records.
    pub records: usize,
    /// The number of pages, including zero pages.
    pub pages: PageCount,
    /// The size of the pages that were read and verified.
    pub bytes: ByteCount,
}

/// A run: extents of one segment that one thread reads together.
#[derive(Debug)]
struct Run<'a> {
    segment: SegmentId,
    parts: Vec<Range<ByteCount>>,
    bytes: u64,
    extents: &'a [Extent],
}

impl<'a> LoadedRun<'a> {
    /// Returns the extents and their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&'a Extent, &'a [u8])> {
        let (bytes, mut parts, mut before) = (self.bytes, self.parts, 0);
        self.extents.iter().filter_map(move |extent| {
            let (_, place) = extent.stored()?;
            // Extents and parts are sorted by offset, and each extent lies in one part.
            while let [first, rest @ ..] = parts
                && first.end.get() <= place.start
            {
                before += first.end.get() - first.start.get();
                parts = rest;
            }
            let at = before + place.start.checked_sub(parts.first()?.start.get())?;
            Some((extent, bytes.get(at as usize..(at + place.end - place.start) as usize)?))
        })
    }
}

impl ImageReader {
    /// Reads the stored pages of the given extents of this image's index, and passes them to `sink`.
    ///
    /// `sink` is called once for each run, in no particular order, in the thread that has read the run. The number of
    /// threads is at most twice `threads`, because about half of the threads wait for the device. `sink` does not
    /// receive extents of zero pages.
    ///
    /// # Errors
    ///
    /// Returns the first error of reading, of a check or of `sink`.
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
        stored.sort_unstable_by_key(|extent| extent.stored().map(|(segment, bytes)| (segment, bytes.start)));
        let runs = join(&stored);
        let threads = (threads.get() * THREADS_EACH).min(runs.len());
        let load = Load { reader: self, runs: &runs, next: AtomicUsize::new(0), failed: Mutex::new(None) };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| load.work(&sink));
            }
            load.work(&sink);
        });
        load.failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Reads and verifies all pages of the image. After each verified run, calls `good` with the number of verified
    /// bytes of the run. The calls come from several threads.
    ///
    /// # Errors
    ///
    /// Returns the first error of reading or of a check.
    pub fn verify(&self, good: impl Fn(ByteCount) + Sync) -> Result<VerifyReport> {
        let index = self.index();
        self.load::<Error>(index.extents(), THREADS, |run| {
            good(ByteCount(run.iter().map(|(_, bytes)| bytes.len() as u64).sum()));
            Ok(())
        })?;
        let (pages, bytes) = (index.pages(), index.stored_pages().bytes());
        Ok(VerifyReport { records: self.records().len(), pages, bytes })
    }
}

struct Load<'a, E> {
    reader: &'a ImageReader,
    runs: &'a [Run<'a>],
    next: AtomicUsize,
    failed: Mutex<Option<E>>,
}

impl<E: From<Error>> Load<'_, E> {
    /// Reads runs until no run is left.
    fn work(&self, sink: &impl Fn(&LoadedRun<'_>) -> std::result::Result<(), E>) {
        let mut reader = PartReader::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = self.runs.get(number) else { return };
            let done = self.fetch(run, &mut reader).map_err(E::from).and_then(|loaded| sink(&loaded));
            if let Err(error) = done {
                self.next.store(self.runs.len(), Ordering::Relaxed);
                locked(&self.failed).get_or_insert(error);
                return;
            }
        }
    }

    fn fetch<'b>(&self, run: &'b Run<'b>, reader: &'b mut PartReader) -> Result<LoadedRun<'b>> {
        let segment = self.reader.segment(run.segment)?;
        let bytes = segment.pages.read_parts(&run.parts, reader)?;
        let loaded = LoadedRun { extents: run.extents, parts: &run.parts, bytes };
        for (extent, bytes) in loaded.iter() {
            check_pages(&segment.path, extent, bytes)?;
        }
        Ok(loaded)
    }
}

/// Divides sorted extents into runs.
fn join(extents: &[Extent]) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    let mut first = 0;
    for (number, extent) in extents.iter().enumerate() {
        let Some((segment, bytes)) = extent.stored() else { continue };
        if let Some(run) = runs.last_mut()
            && run.take(segment, &bytes)
        {
            run.extents = &extents[first..=number];
            continue;
        }
        first = number;
        let parts = vec![ByteCount(bytes.start)..ByteCount(bytes.end)];
        let extents = &extents[number..=number];
        runs.push(Run { segment, parts, bytes: bytes.end - bytes.start, extents });
    }
    runs
}

impl Run<'_> {
    /// Adds the extent at `bytes` of a segment to the run. The extent must not begin before the previous extent.
    /// Returns false, without a change, if the segment is another one or the run would become too large.
    fn take(&mut self, segment: SegmentId, bytes: &Range<u64>) -> bool {
        let Some(last) = self.parts.last_mut() else { return false };
        if segment != self.segment {
            return false;
        }
        let near = bytes.start <= last.end.get().saturating_add(GAP_BYTES_MAX);
        let more = if near { bytes.end.saturating_sub(last.end.get()) } else { bytes.end - bytes.start };
        if self.bytes + more > RUN_BYTES_MAX {
            return false;
        }
        self.bytes += more;
        if near {
            last.end = last.end.max(ByteCount(bytes.end));
        } else {
            self.parts.push(ByteCount(bytes.start)..ByteCount(bytes.end));
        }
        true
    }
}
