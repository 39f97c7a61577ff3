//! The background writer: creates segments, reads pages for compaction, removes segments. Commits do not wait for this
//! work.
//!
//! Owns: its thread. Without a thread, the caller does the same work immediately.
//! Invariants: segments are returned in the order of their numbers. A page is returned only after its checksum was
//! verified.
//! Does not: decide which pages are moved or which segments are removed.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{LOG_BLOCK_BYTES, LogSegment, PageChecksum, SpaceId};
use model::ByteCount;
use sys::page_buffer::PageBuffer;
use sys::part_reader::PartReader;

use super::layout::{SegmentLayout, check_page, create_segment, open_segment, remove_segment, too_many};
use super::segments::SegmentLengths;
use super::table::BlockIndex;
use super::worker_thread::Worker;
use crate::error::{Error, Result};
use crate::medium::{Medium, PageFile};
use crate::scheduler::{LogIo, Urgency};
use crate::threads::Threads;

/// The number of segments that are created in advance. At the full rate of the device, a segment lasts some
/// milliseconds, and the creation takes about one millisecond.
const AHEAD: u32 = 2;

/// The maximum number of queued jobs: the segments created in advance, the reads in progress, and removals.
const JOBS_MAX: usize = 64;

/// A gap of fewer blocks than this between two pages is read and discarded. As in `load`, reading a short gap costs
/// less than another request.
const GAP_BLOCKS_MAX: u32 = 16;

/// The maximum number of blocks that are read at once: 2 MiB, one huge page.
const READ_BLOCKS_MAX: u32 = 512;

const BLOCK: usize = LOG_BLOCK_BYTES as usize;

/// A page that compaction will move.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) space: SpaceId,
    pub(super) page: u64,
    pub(super) block_index: BlockIndex,
    pub(super) block: u32,
    pub(super) checksum: PageChecksum,
}

/// Pages of one segment that will be moved, sorted by block. The pages fit into the buffer.
#[derive(Debug)]
pub(super) struct MoveJob {
    pub(super) segment: LogSegment,
    pub(super) moves: Vec<Move>,
    pub(super) buffer: PageBuffer,
}

#[derive(Debug)]
enum Job {
    Create(LogSegment, ByteCount),
    Read(MoveJob),
    /// Segments, and their size on the device.
    Remove(Vec<LogSegment>, ByteCount),
}

#[derive(Debug)]
enum Done {
    Created(LogSegment, Result<Box<dyn PageFile>>),
    Read(MoveJob, Result<()>),
    /// The size of the removed segments.
    Removed(ByteCount),
}

/// The interface to the background writer.
#[derive(Debug)]
pub(super) struct BackgroundWriter {
    work: Work,
    thread: Option<Worker<Job, Done>>,
    next: u32,
    asked: u32,
    lengths: SegmentLengths,
    /// The maximum number of segments that are created in advance now. A segment that is taken counts until the next
    /// call of `limit_ahead`.
    ahead_max: u32,
    /// The size of the segments whose removal was requested and is not complete.
    removing: ByteCount,
    ready: VecDeque<(LogSegment, Result<Box<dyn PageFile>>)>,
    read: VecDeque<(MoveJob, Result<()>)>,
    /// The number of reads that are in progress or complete and not yet taken.
    pub(super) reading: usize,
    /// The buffers for work without a thread.
    buffers: Buffers,
}

/// The buffers of one worker, which it uses for all jobs.
#[derive(Debug, Default)]
struct Buffers {
    reader: PartReader,
    /// For the header of a new segment.
    header: Option<PageBuffer>,
}

#[derive(Clone, Debug)]
struct Work {
    medium: Arc<dyn Medium>,
    directory: PathBuf,
    layout: SegmentLayout,
    io: Arc<LogIo>,
}

impl BackgroundWriter {
    /// Returns a background writer that creates segments of this length from the number `first` on, in `threads` or in the
    /// thread of the caller.
    pub(super) fn start(
        medium: Arc<dyn Medium>,
        directory: &Path,
        layout: SegmentLayout,
        (first, length): (LogSegment, ByteCount),
        (io, threads): (&Arc<LogIo>, Option<&Threads>),
    ) -> Self {
        let work = Work { medium, directory: directory.to_path_buf(), layout, io: Arc::clone(io) };
        let thread = threads.map(|threads| work.clone().start(threads));
        let (ready, read) = (VecDeque::new(), VecDeque::new());
        let buffers = Buffers::default();
        let mut background_writer = Self {
            work,
            thread,
            next: first.0,
            asked: first.0,
            lengths: SegmentLengths::all(length),
            ahead_max: AHEAD,
            removing: ByteCount(0),
            ready,
            read,
            reading: 0,
            buffers,
        };
        background_writer.ask_ahead();
        background_writer
    }

    /// Sets the length of the segments that are not yet requested. Returns the number of the first of them.
    pub(super) fn set_length(&mut self, length: ByteCount) -> LogSegment {
        let from = LogSegment(self.asked.max(self.next));
        self.lengths.forget_before(LogSegment(self.next));
        self.lengths.set_from(from, length);
        from
    }

    /// Returns the next segment, and its length. Waits if the segment is not yet created.
    pub(super) fn segment(&mut self) -> Result<(LogSegment, ByteCount, Box<dyn PageFile>)> {
        let number = LogSegment(self.next);
        let length = self.lengths.of(number);
        self.next = self.next.checked_add(1).ok_or_else(|| too_many(&self.work.directory))?;
        while self.asked > number.0 && self.ready.is_empty() {
            if !self.receive(true) {
                return Err(Error::Io(sys::Error::new("continue after a panic", sys::Errno::SHORT)));
            }
        }
        let made = match self.ready.pop_front() {
            // If the creation in advance has failed, the segment is created now, because space may have been freed
            // meanwhile.
            Some((_, Ok(file))) => Ok(file),
            _ => self.work.create((number, length), &mut self.buffers),
        };
        self.asked = self.asked.max(self.next);
        self.ahead_max = self.ahead_max.saturating_sub(1);
        self.ask_ahead();
        Ok((number, length, made?))
    }

    /// Starts to read pages for compaction.
    pub(super) fn read(&mut self, job: MoveJob) {
        self.reading += 1;
        self.give(Job::Read(job));
    }

    /// Returns a completed read, if there is one now. With `wait`, waits for a read that is in progress.
    pub(super) fn take_read(&mut self, wait: bool) -> Option<(MoveJob, Result<()>)> {
        while self.receive(false) {}
        while wait && self.read.is_empty() && self.reading > 0 && self.receive(true) {}
        let read = self.read.pop_front()?;
        self.reading -= 1;
        Some(read)
    }

    /// Removes segments without references. They have this size on the device.
    pub(super) fn remove(&mut self, numbers: Vec<LogSegment>, size: ByteCount) {
        if !numbers.is_empty() {
            // The results are taken, so that the thread never waits for this one.
            while self.receive(false) {}
            self.removing += size;
            self.give(Job::Remove(numbers, size));
        }
    }

    /// Returns the size of the segments whose removal is not complete.
    pub(super) fn removing(&mut self) -> ByteCount {
        while self.receive(false) {}
        self.removing
    }

    /// Waits until one requested removal is complete. Returns false if no removal was requested.
    pub(super) fn await_removal(&mut self) -> bool {
        let before = self.removing;
        while self.removing > ByteCount(0) && self.removing == before && self.receive(true) {}
        self.removing < before
    }

    /// Returns the number of segments that were created in advance, or are being created.
    pub(super) fn ahead(&self) -> u64 {
        self.asked.saturating_sub(self.next).into()
    }

    /// Limits the number of segments that are created in advance. Existing segments remain.
    pub(super) fn limit_ahead(&mut self, count: u64) {
        self.ahead_max = u32::try_from(count).unwrap_or(AHEAD).min(AHEAD);
        self.ask_ahead();
    }

    /// Ends the thread, and removes segments that were created and not used.
    pub(super) fn finish(mut self) {
        while self.receive(true) {}
        let unused = self.ready.drain(..).filter_map(|(number, made)| made.is_ok().then_some(number));
        self.work.remove(&unused.collect::<Vec<_>>());
    }

    fn ask_ahead(&mut self) {
        while self.thread.is_some() && self.asked < self.next.saturating_add(self.ahead_max) {
            let number = LogSegment(self.asked);
            self.give(Job::Create(number, self.lengths.of(number)));
            self.asked += 1;
        }
    }

    fn give(&mut self, job: Job) {
        match &self.thread {
            Some(thread) => thread.give(job),
            None => {
                let done = self.work.run(job, &mut self.buffers);
                self.sort(done);
            }
        }
    }

    /// Receives one result. Returns false if there is no result. With `wait`, returns false only if no job is left.
    fn receive(&mut self, wait: bool) -> bool {
        let Some(thread) = &self.thread else { return false };
        let done = if wait { thread.take() } else { thread.try_take() };
        let received = done.is_some();
        self.sort(done);
        received
    }

    fn sort(&mut self, done: Option<Done>) {
        match done {
            Some(Done::Created(number, file)) => self.ready.push_back((number, file)),
            Some(Done::Read(job, result)) => self.read.push_back((job, result)),
            Some(Done::Removed(size)) => {
                self.removing = ByteCount(self.removing.get().saturating_sub(size.get()))
            }
            None => {}
        }
    }
}

impl Work {
    fn start(self, threads: &Threads) -> Worker<Job, Done> {
        let mut buffers = Buffers::default();
        Worker::new(threads, JOBS_MAX, move |job, report| {
            self.run(job, &mut buffers).map(report);
        })
    }

    fn run(&self, job: Job, buffers: &mut Buffers) -> Option<Done> {
        match job {
            Job::Create(number, length) => {
                Some(Done::Created(number, self.create((number, length), buffers)))
            }
            Job::Read(mut job) => {
                let result = self.read(&mut job, &mut buffers.reader);
                Some(Done::Read(job, result))
            }
            Job::Remove(numbers, size) => {
                self.remove(&numbers);
                Some(Done::Removed(size))
            }
        }
    }

    fn create(&self, segment: (LogSegment, ByteCount), buffers: &mut Buffers) -> Result<Box<dyn PageFile>> {
        create_segment(&*self.medium, &self.directory, &self.layout, segment, &mut buffers.header)
    }

    fn remove(&self, numbers: &[LogSegment]) {
        numbers.iter().for_each(|number| remove_segment(&*self.medium, &self.directory, *number));
    }

    /// Fills the buffer with the pages of a job, in order, and verifies their checksums.
    fn read(&self, job: &mut MoveJob, reader: &mut PartReader) -> Result<()> {
        let segment = open_segment(&*self.medium, &self.directory, job.segment)?;
        if job.buffer.deserves_huge_pages() {
            job.buffer.take_huge_pages();
        }
        let mut done = 0;
        while done < job.moves.len() {
            let (parts, blocks) = stretches(&job.moves[done..]);
            self.io.give_way(Urgency::Background, || false);
            let bytes = segment.pages.read_parts(&parts, reader)?;
            for (from, moved) in blocks.iter().zip(&job.moves[done..]) {
                let page = &bytes[from * BLOCK..][..BLOCK];
                let offset = ByteCount(u64::from(moved.block) * LOG_BLOCK_BYTES);
                check_page(&segment.path, (moved.space, moved.page), offset, moved.checksum, page)?;
                job.buffer[done * BLOCK..][..BLOCK].copy_from_slice(page);
                done += 1;
            }
        }
        Ok(())
    }
}

/// Returns the byte ranges of one read for the first of these pages. Also returns the position of each of these first
/// pages in the data of the read, counted in blocks.
fn stretches(moves: &[Move]) -> (Vec<Range<ByteCount>>, Vec<usize>) {
    let mut parts: Vec<Range<u32>> = Vec::new();
    let (mut blocks, mut total) = (Vec::new(), 0);
    for moved in moves {
        let gap = parts.last().map(|part| moved.block - part.end).filter(|gap| *gap < GAP_BLOCKS_MAX);
        let more = gap.unwrap_or(0) + 1;
        if total + more > READ_BLOCKS_MAX {
            break;
        }
        match parts.last_mut() {
            Some(part) if gap.is_some() => part.end = moved.block + 1,
            _ => parts.push(moved.block..moved.block + 1),
        }
        total += more;
        blocks.push(total as usize - 1);
    }
    let bytes = |block: u32| ByteCount(u64::from(block) * LOG_BLOCK_BYTES);
    (parts.into_iter().map(|part| bytes(part.start)..bytes(part.end)).collect(), blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: &[u32]) -> (Vec<(u64, u64)>, Vec<usize>) {
        let checksum = PageChecksum(0);
        let moves = blocks.iter().map(|block| {
            let block_index = BlockIndex::new(0);
            Move { space: SpaceId(0), page: 0, block_index, block: *block, checksum }
        });
        let (parts, places) = stretches(&moves.collect::<Vec<_>>());
        (parts.iter().map(|part| (part.start.get() >> 12, part.end.get() >> 12)).collect(), places)
    }

    #[test]
    fn pages_near_each_other_are_read_with_what_lies_between() {
        assert_eq!(of(&[5]), (vec![(5, 6)], vec![0]));
        assert_eq!(of(&[5, 6, 9]), (vec![(5, 10)], vec![0, 1, 4]));
        assert_eq!(of(&[5, 100, 101]), (vec![(5, 6), (100, 102)], vec![0, 1, 2]));
    }

    #[test]
    fn no_more_is_read_at_once_than_the_limit() {
        let blocks: Vec<u32> = (0..200).map(|number| number * 4).collect();
        let (parts, places) = of(&blocks);
        assert_eq!((parts.as_slice(), places.len()), ([(0, 509)].as_slice(), 128));
        let blocks: Vec<u32> = (0..1000).map(|number| number * 100).collect();
        assert_eq!(of(&blocks).1.len(), READ_BLOCKS_MAX as usize);
    }
}
