//! Compresses segments that were not written for a while.
//!
//! Owns: which segments are compressed and when, the thread that does it, the files of a compressed segment.
//! Invariants: only durable segments that are no longer written are compressed. The original file is removed when its
//! replacement is durable. Each segment is tried once: a failure leaves it as it was, and fails no commit.
//! Does not: read pages for its callers; `layout` does, from either file.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use image::{CHUNK_BYTES, LogSegment};
use model::{ByteCount, Tid};
use sys::clock::Clock;
use sys::page_buffer::PageBuffer;
use sys::part_reader::PartReader;
use sys::scheduling::{self, Attributes};

use super::layout::{chunks_path, compressed_path, segment_path};
use super::options::SegmentCompression;
use super::segments::{Compressed, Segments, Watched};
use super::worker_thread::WorkerThread;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::medium::{Medium, Writes};
use crate::segment::{EndedSegment, SegmentWriter};

/// Looks for cold segments in the time that makes one cold.
const LOOKS: u32 = 64;

/// Segments that the thread is given at once: what was dirtied meanwhile is not compressed for nothing.
const BATCH_MAX: usize = 16;

/// Bytes read at once, and the reads and writes that a segment's thread may be late to notice its end by.
const READ_BYTES: ByteCount = ByteCount(1 << 20);

/// Writes under way.
const IN_FLIGHT: std::num::NonZeroUsize = std::num::NonZeroUsize::new(2).expect("2 is not zero");

/// The calling thread.
const SELF: Tid = Tid(0);

/// The last of all ordinary threads.
const NICE: i32 = 19;

/// What came of a segment: how long it is now, if it was worth it.
type Outcome = (LogSegment, Result<Option<ByteCount>>);

/// Which segments are compressed.
#[derive(Debug)]
pub(super) struct Compressor {
    /// How long a segment is watched.
    after: Duration,
    clock: Clock,
    work: Work,
    thread: Option<WorkerThread<Vec<LogSegment>, Outcome>>,
    own_thread: bool,
    done: VecDeque<Outcome>,
    under_way: usize,
    next_look: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Work {
    medium: Arc<dyn Medium>,
    directory: PathBuf,
    codec: &'static dyn Codec,
    is_over: Arc<AtomicBool>,
}

impl Compressor {
    /// Compresses what nothing has been written to for so long, in a thread of its own or in the caller's.
    pub(super) fn new(
        medium: Arc<dyn Medium>,
        directory: &Path,
        SegmentCompression { codec, after, clock }: SegmentCompression,
        own_thread: bool,
    ) -> Self {
        let work = Work { medium, directory: directory.to_path_buf(), codec, is_over: Arc::default() };
        let (done, next_look) = (VecDeque::new(), None);
        Self { after, clock, work, thread: None, own_thread, done, under_way: 0, next_look }
    }

    /// Begins with what has become cold, `active` being the segment that is written to. Not before everything before it
    /// is durable, the newest slot in it among that.
    pub(super) fn plan(&mut self, segments: &mut Segments, active: LogSegment) {
        let now = self.clock.now();
        if self.under_way > 0 || self.next_look.is_some_and(|next| now < next) {
            return;
        }
        self.next_look = Some(now + self.after / LOOKS);
        let mut found = Vec::new();
        let full = segments.iter_mut().filter(|state| state.number < active && state.compressed.is_none());
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

    /// A segment that is done with, if there is one now, and its new length, if it has one.
    pub(super) fn take_done(&mut self) -> Option<(LogSegment, Option<ByteCount>)> {
        let done = self.done.pop_front().or_else(|| self.thread.as_ref()?.try_take());
        let (number, outcome) = done?;
        self.under_way -= 1;
        Some((number, outcome.ok().flatten()))
    }

    fn give(&mut self, found: Vec<LogSegment>) {
        let count = found.len();
        if !self.own_thread {
            self.done.extend(found.into_iter().map(|number| (number, self.work.compress(number))));
        } else if let Some(thread) = self.thread() {
            thread.give(found);
        } else {
            // Without a thread, these stay as they are.
            return;
        }
        self.under_way = count;
    }

    fn thread(&mut self) -> Option<&WorkerThread<Vec<LogSegment>, Outcome>> {
        if self.thread.is_none() {
            self.thread = self.work.clone().start().ok();
        }
        self.thread.as_ref()
    }
}

/// Whether most of what lived in a segment is likely to stay: what has been there for as long as is watched, and lost
/// less than a quarter. So do those that older checkpoints alone need.
fn stays(was: u32, live: u32) -> bool {
    4 * u64::from(live) >= 3 * u64::from(was)
}

impl Drop for Compressor {
    fn drop(&mut self) {
        self.work.is_over.store(true, Ordering::Relaxed);
    }
}

impl Work {
    fn start(self) -> Result<WorkerThread<Vec<LogSegment>, Outcome>> {
        let mut is_last = false;
        WorkerThread::start("undying-compress", BATCH_MAX, move |numbers, tell| {
            if !is_last {
                is_last = true;
                let nice = Attributes { nice: NICE, ..Attributes::default() };
                // It is as right, and in the way of others.
                let _ = scheduling::set_attributes(SELF, &nice);
            }
            for number in numbers {
                if !tell((number, self.compress(number))) {
                    return;
                }
            }
        })
    }

    /// Puts a compressed segment in the place of one; `None` when it is not worth it, or the log has dropped the segment.
    fn compress(&self, number: LogSegment) -> Result<Option<ByteCount>> {
        let (medium, directory) = (&*self.medium, &*self.directory);
        let (path, chunks) =
            (compressed_path(directory, number, self.codec.name()), chunks_path(directory, number));
        let done = self.write(number, &path, &chunks);
        if let Ok(Some(length)) = done {
            // From here on it counts. Where this fails, the next writer removes one or the other.
            medium.remove_file(&segment_path(directory, number))?;
            return Ok(Some(length));
        }
        let _ = medium.remove_file(&path);
        let _ = medium.remove_file(&chunks);
        done
    }

    /// Writes a segment's compressed file and its chunks, durable both.
    fn write(&self, number: LogSegment, path: &Path, chunks: &Path) -> Result<Option<ByteCount>> {
        let medium = &*self.medium;
        let source = medium.open_pages(&segment_path(&self.directory, number))?;
        let whole = source.length()?;
        let sink = medium.create_pages(path, Writes::Many(IN_FLIGHT))?;
        // Chunk by chunk: on one thread.
        let mut writer = SegmentWriter::compressed(sink, self.codec, CHUNK_BYTES)?;
        let (mut reader, mut at) = (PartReader::default(), ByteCount(0));
        while at < whole {
            if self.is_over.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let end = (at + READ_BYTES).min(whole);
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
        let mut file = medium.create_file(chunks)?;
        file.write(&encoded)?;
        file.sync()?;
        medium.sync_directory(&self.directory)?;
        Ok(Some(length))
    }
}
