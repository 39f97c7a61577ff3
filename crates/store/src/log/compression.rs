//! Compresses segments whose pages rarely change. Such a segment has kept most of its live pages during an observation
//! time.
//!
//! Owns: the choice of segments to compress and the time of compression; the compressing thread; writing the files of a
//! compressed segment.
//! Invariants: only durable segments that are no longer written are compressed. The uncompressed file is removed when
//! its replacement is durable. Each segment is tried once. A failed compression leaves the segment unchanged, and does
//! not make a commit fail.
//! Does not: read pages for callers; `layout` does, from both kinds of files.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use image::{CHUNK_BYTES, LogSegment};
use model::ByteCount;
use sys::Errno;
use sys::clock::Clock;
use sys::page_buffer::PageBuffer;
use sys::part_reader::PartReader;

use super::layout::{chunks_path, compressed_path, new_chunks_path, segment_path};
use super::options::SegmentCompression;
use super::segments::{Compressed, Segments, Watched};
use super::worker_thread::Worker;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::medium::{Medium, Writes};
use crate::scheduler::{LogIo, Urgency};
use crate::segment::{EndedSegment, SegmentWriter};
use crate::threads::Threads;

/// Number of inspections of a segment during the observation time (the field `after`).
const SCANS_PER_DELAY: u32 = 64;

/// The maximum number of segments that are sent to the thread at once. The limit is low because a waiting segment can
/// lose its live pages, and its compression would then be useless.
const BATCH_MAX: usize = 16;

/// The number of bytes that are read at once. The thread checks after each read whether it must end.
const READ_BYTES: ByteCount = ByteCount(1 << 20);

/// The maximum number of writes in flight.
const IN_FLIGHT: std::num::NonZeroUsize = std::num::NonZeroUsize::new(2).expect("2 is not zero");

/// The result of a compression: the new length, or `None` if the segment remains uncompressed.
type Outcome = (LogSegment, Result<Option<ByteCount>>);

/// Chooses and compresses old segments.
#[derive(Debug)]
pub(super) struct Compressor {
    /// The time for which a full segment is observed before it is compressed.
    after: Duration,
    clock: Clock,
    threads: Option<Threads>,
    work: Work,
    worker: Option<Worker<Vec<LogSegment>, Outcome>>,
    done: VecDeque<Outcome>,
    under_way: usize,
    next_scan: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Work {
    medium: Arc<dyn Medium>,
    directory: PathBuf,
    codec: &'static dyn Codec,
    is_over: Arc<AtomicBool>,
    io: Arc<LogIo>,
}

impl Compressor {
    /// Creates a compressor that works in `threads` or in the thread of the caller.
    pub(super) fn new(
        medium: Arc<dyn Medium>,
        directory: &Path,
        SegmentCompression { codec, after, clock }: SegmentCompression,
        (io, threads): (&Arc<LogIo>, Option<&Threads>),
    ) -> Self {
        let (directory, io) = (directory.to_path_buf(), Arc::clone(io));
        let work = Work { medium, directory, codec, is_over: Arc::default(), io };
        let (done, next_scan) = (VecDeque::new(), None);
        let worker = threads.map(|threads| work.clone().start(threads));
        Self { after, clock, threads: threads.cloned(), work, worker, done, under_way: 0, next_scan }
    }

    /// Starts the compression of segments whose pages rarely change. `end` is the first segment that can still be written.
    /// Call this when all older segments are durable. The newest slot must be durable, too.
    pub(super) fn plan(&mut self, segments: &mut Segments, end: LogSegment) {
        let now = self.clock.now();
        if self.under_way > 0 || self.next_scan.is_some_and(|next| now < next) {
            return;
        }
        self.next_scan = Some(now + self.after / SCANS_PER_DELAY);
        let mut found = Vec::new();
        let full = segments.iter_mut().filter(|state| state.number < end && state.compressed.is_none());
        for state in full {
            let was = *state.watched.get_or_insert(Watched { since: now, live: state.live });
            if now - was.since < self.after {
                continue;
            }
            if !state.cleaning && stays(was.live, state.live) {
                found.push(state.number);
            } else {
                state.watched = Some(Watched { since: now, live: state.live });
            }
        }
        found.sort_unstable();
        found.truncate(BATCH_MAX);
        for number in &found {
            if let Some(state) = segments.get_mut(*number) {
                state.compressed = Some(Compressed::Begun);
            }
        }
        if !found.is_empty() {
            self.give(found);
        }
    }

    /// Returns a segment whose compression has ended, if there is one now. The length is `None` if the segment remains
    /// uncompressed.
    pub(super) fn take_done(&mut self) -> Option<(LogSegment, Option<ByteCount>)> {
        let done = self.done.pop_front().or_else(|| self.worker.as_ref()?.try_take());
        let (number, outcome) = done?;
        self.under_way -= 1;
        Some((number, outcome.ok().flatten()))
    }

    fn give(&mut self, found: Vec<LogSegment>) {
        let count = found.len();
        match (&self.worker, &self.threads) {
            // If no thread can be started, these segments remain uncompressed.
            (Some(worker), Some(threads)) if threads.start().is_ok() => worker.give(found),
            (Some(_), _) => return,
            (None, _) => {
                self.done.extend(found.into_iter().map(|number| (number, self.work.compress(number))));
            }
        }
        self.under_way = count;
    }
}

/// Reports whether most live pages of a segment are likely to remain: at most a quarter was lost during the
/// observation. This can also be a segment that only older checkpoints need.
fn stays(was: u32, live: u32) -> bool {
    4 * u64::from(live) >= 3 * u64::from(was)
}

impl Drop for Compressor {
    fn drop(&mut self) {
        self.work.is_over.store(true, Ordering::Relaxed);
    }
}

impl Work {
    fn start(self, threads: &Threads) -> Worker<Vec<LogSegment>, Outcome> {
        Worker::new(threads, BATCH_MAX, move |numbers, report| {
            for number in numbers {
                report((number, self.compress(number)));
            }
        })
    }

    /// Replaces a segment by a compressed segment. Returns `None` if compression is not useful or if the thread must
    /// end.
    fn compress(&self, number: LogSegment) -> Result<Option<ByteCount>> {
        let (medium, directory) = (&*self.medium, &*self.directory);
        let (path, chunks) =
            (compressed_path(directory, number, self.codec.name()), chunks_path(directory, number));
        let done = self.write(number, &path, &chunks);
        if let Ok(Some(length)) = done {
            // From now on, the compressed file is used, and the uncompressed file is removed. If this removal fails,
            // the next writer uses the uncompressed file and removes the compressed file.
            match medium.remove_file(&segment_path(directory, number)) {
                // The writer has removed the segment meanwhile.
                Err(error) if error.errno == Errno::ENOENT => {}
                outcome => return Ok(outcome.map(|()| Some(length))?),
            }
        }
        let _ = medium.remove_file(&path);
        let _ = medium.remove_file(&chunks);
        done.map(|_| None)
    }

    /// Writes the compressed file and the chunk table of a segment, and makes both durable.
    fn write(&self, number: LogSegment, path: &Path, chunks: &Path) -> Result<Option<ByteCount>> {
        let medium = &*self.medium;
        let source = medium.open_pages(&segment_path(&self.directory, number))?;
        let whole = source.length()?;
        let sink = medium.create_pages(path, Writes::Many(IN_FLIGHT))?;
        // With a buffer of one chunk, the compression uses only this thread.
        let mut writer = SegmentWriter::compressed(sink, self.codec, CHUNK_BYTES)?;
        let (mut reader, mut at) = (PartReader::default(), ByteCount(0));
        while at < whole {
            if self.is_over.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let end = (at + READ_BYTES).min(whole);
            self.io.give_way(Urgency::Background, || false);
            let bytes = source.read_parts(std::slice::from_ref(&(at..end)), &mut reader)?;
            let mut buffer = match writer.take_done()? {
                Some(buffer) => buffer,
                None => PageBuffer::new(READ_BYTES)?,
            };
            buffer[..bytes.len()].copy_from_slice(bytes);
            writer.submit(buffer, ByteCount(bytes.len() as u64))?;
            at = end;
        }
        writer.flush()?;
        while writer.wait_done()?.is_some() {}
        let EndedSegment { sink, length, chunks: table } =
            writer.into_ended().map_err(|error| Error::encoding(path, error))?;
        let worth = table.filter(|_| length.get() < whole.get() / 8 * 7);
        let Some(table) = worth else { return Ok(None) };
        sink.finish(length)?;
        let encoded = table.encode().map_err(|error| Error::encoding(chunks, error))?;
        let new = new_chunks_path(&self.directory, number);
        let mut file = medium.create_file(&new)?;
        let written = file.write(&encoded).and_then(|()| file.sync());
        if let Err(error) = written.and_then(|()| medium.rename(&new, chunks)) {
            let _ = medium.remove_file(&new);
            return Err(error.into());
        }
        medium.sync_directory(&self.directory)?;
        Ok(Some(length))
    }
}
