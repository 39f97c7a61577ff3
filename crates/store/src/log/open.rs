//! Opens a log for writing: reads the newest state and prepares the writer.
//!
//! Owns: the lock of the log; the steps from the files of the last writer to a `WriterThread`.
//! Invariants: a log has one writer at a time. Data of an earlier writer is durable before new data refers to it, and
//! before files are removed that only older commits need. No segment of an earlier writer is written again.
//! Does not: start the writer thread.

use std::path::Path;
use std::sync::Arc;

use image::{LogId, LogPlace, LogSegment};
use model::{ByteCount, PAGE_BYTES};
use sys::direct_io::Rings;

use super::active_segment::ActiveSegment;
use super::background_writer::BackgroundWriter;
use super::clean::Cleaner;
use super::compression::Compressor;
use super::layout::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SegmentLayout, segment_path, too_many};
use super::load::{LogFiles, Newest};
use super::options::{LogOptions, LogThreads};
use super::queue::Shared;
use super::segments::{Compressed, Segments};
use super::space::{Inventory, Retention};
use super::state::{Parts, State};
use super::ticket::LogStatus;
use super::writer_thread::{SlotStamp, WriterThread};
use crate::error::{Error, Result};
use crate::layout::parent;
use crate::medium::{Lock, Medium};
use crate::packer::Packed;

/// The maximum number of writes in flight in addition to the buffers of the pool: blobs (index parts and roots), slots,
/// and pages moved by compaction.
const OTHER_WRITES: usize = 12;

/// A log that is ready for writing.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) writer_thread: WriterThread,
    pub(super) lock: Box<dyn Lock>,
    /// The newest checkpoint, on which the next checkpoint can build.
    pub(super) newest: Option<Newest>,
}

/// Opens the log in this directory, and creates the directory if it does not exist.
pub(super) fn open(medium: &Arc<dyn Medium>, directory: &Path, options: &LogOptions) -> Result<Opened> {
    let shared = Arc::new(Shared::new(options.buffers.get(), &options.service)?);
    let lock = lock(&**medium, directory)?;
    let mut files = LogFiles::new(&**medium, directory);
    let Inventory { newest, there, kept, live, garbage } = Inventory::take(&mut files)?;
    let first = there.keys().last().map_or(Some(1), |last| last.0.checked_add(1));
    let first = LogSegment(first.ok_or_else(|| too_many(directory))?);
    // Compressed segments are already durable.
    let durable = newest.as_ref().map_or(LogSegment(0), |newest| newest.slot.durable.segment);
    let unsure = there.iter().filter(|(number, files)| files.is_plain && **number >= durable);
    let mut unsure = unsure.filter(|(number, _)| live.contains(number));
    unsure.try_for_each(|(number, _)| medium.sync_file(&segment_path(directory, *number)))?;
    // Only now, the newest commit survives a power cut. The commits before it may need these files.
    garbage.iter().try_for_each(|path| medium.remove_file(path))?;
    let log = match &newest {
        Some(newest) => newest.slot.log,
        None => new_id()?,
    };
    let asked = options.segment.get().clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    let asked = ByteCount(asked.next_multiple_of(PAGE_BYTES));
    let segment = newest.as_ref().map_or(asked, |newest| newest.length.min(asked));
    let in_flight = options.buffers.saturating_add(OTHER_WRITES);
    let layout = SegmentLayout { log, rings: Rings::new(in_flight) };
    let service = (options.threads == LogThreads::Own).then_some(&options.service);
    service.map_or(Ok(()), |service| service.writers.start())?;
    let io = Arc::clone(&shared.io);
    let (writers, compressors) = (service.map(|all| &all.writers), service.map(|all| &all.compressors));
    let background_writer =
        BackgroundWriter::start(Arc::clone(medium), directory, layout, (first, segment), (&io, writers));
    let lengths = files.lengths(&live, (first, segment))?;
    let mut state = match &newest {
        Some(newest) => State::of(files.load_with(&newest.root, lengths)?),
        None => State::empty(Segments::new(lengths)),
    };
    for number in kept.iter().flat_map(|kept| &kept.segments) {
        state.segments.add(*number).ok_or_else(|| too_many(directory))?;
    }
    for (number, _) in there.iter().filter(|(_, files)| files.codec().is_some()) {
        if let Some(state) = state.segments.get_mut(*number) {
            let length = files.take(*number)?.file_length;
            state.compressed = Some(Compressed::To(length));
        }
    }
    let generation = newest.as_ref().map_or(0, |newest| newest.slot.generation);
    let mut writer_thread = WriterThread {
        shared,
        active_segment: ActiveSegment::new(
            directory,
            background_writer,
            options.wasted_max,
            options.service.stock.clone(),
        ),
        stamp: SlotStamp { log, generation, durable: LogPlace { segment: first, block: 0 } },
        state,
        // The first commit writes a full index, because the content of the next merged part is unknown.
        parts: Parts::default(),
        retention: Retention { policy: options.keep, size: options.size, segment, kept, newest: None },
        epoch: None,
        packed: Packed::default(),
        cleaner: Cleaner::default(),
        compression: options.compression.clone().map(|compression| {
            Compressor::new(Arc::clone(medium), directory, compression, (&io, compressors))
        }),
        pending: Vec::new(),
        status: LogStatus::default(),
    };
    writer_thread.report();
    Ok(Opened { writer_thread, lock, newest })
}

/// Creates the directory of the log if necessary, and locks it.
fn lock(medium: &dyn Medium, directory: &Path) -> Result<Box<dyn Lock>> {
    if medium.kind(directory)?.is_none() {
        match medium.create_directory(directory) {
            Err(error) if error.errno != sys::Errno::EEXIST => return Err(error.into()),
            _ => medium.sync_directory(parent(directory))?,
        }
    }
    medium.check_directory(directory)?;
    medium.lock(directory)?.ok_or_else(|| Error::LogBusy(directory.to_path_buf()))
}

fn new_id() -> Result<LogId> {
    let mut id = [0; 16];
    let random = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    random.map_err(|errno| sys::Error::new("get random bytes", errno))?;
    Ok(LogId(id))
}
