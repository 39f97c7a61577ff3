//! Opening a log for writing: from what the last writer left, to a scribe that goes on.
//!
//! Owns: the lock, removing what nothing refers to, reading the newest state.
//! Invariants: one writer at a time; what an earlier writer left behind is durable before anything is built
//! upon it; no segment of an earlier writer is written to again.
//! Does not: start a thread.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use image::{Blob, LogId, LogPlace, LogSegment};
use model::{ByteCount, PAGE_BYTES};

use super::clean::Cleaner;
use super::cold::Cold;
use super::helper::Helper;
use super::index::Parts;
use super::layout::{
    self, FIRST_BLOCK, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SegmentFiles, Shape, segment_path,
};
use super::load::{LogFiles, Newest};
use super::pack::Packed;
use super::queue::Shared;
use super::records::RecordMap;
use super::scribe::{Kept, Scribe};
use super::segments::{Compressed, Segments};
use super::status::LogStatus;
use super::table::PageTable;
use super::tail::Tail;
use super::writer::{ColdSegments, LogOptions, LogThreads};
use crate::error::{Error, Result};
use crate::medium::{Lock, Medium};
use crate::publish::parent;

/// Writes in flight beside those of the pool's buffers: blobs, slots, moved pages.
const OTHER_WRITES: usize = 12;

/// A log that is ready to be written to.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) scribe: Scribe,
    pub(super) lock: Box<dyn Lock>,
    /// The newest checkpoint, on which the next one can build.
    pub(super) newest: Option<Newest>,
}

/// Opens the log in this directory, which is made if it is not there.
pub(super) fn open(
    medium: &Arc<dyn Medium>,
    directory: &Path,
    options: &LogOptions,
    shared: Arc<Shared>,
) -> Result<Opened> {
    let lock = lock(&**medium, directory)?;
    let mut files = LogFiles::new(&**medium, directory);
    let newest = files.newest()?;
    let there = layout::files(&**medium, directory)?;
    let first = there.keys().last().map_or(Some(1), |last| last.0.checked_add(1));
    let first = LogSegment(first.ok_or_else(|| too_many(directory))?);
    let kept = match &newest {
        Some(newest) => kept(&mut files, newest)?,
        None => Vec::new(),
    };
    sweep(&**medium, directory, &there, &kept, newest.as_ref())?;
    let log = match &newest {
        Some(newest) => newest.slot.log,
        None => new_id()?,
    };
    // Spots are counted in segments of one size; a log keeps the one it was made with.
    let length = newest.as_ref().map_or_else(|| segment_length(options), |newest| newest.length);
    let in_flight = options.buffers.saturating_add(OTHER_WRITES);
    let shape = Shape { log, length, in_flight };
    let own_thread = options.threads == LogThreads::Own;
    let helper = Helper::start(Arc::clone(medium), directory, shape, first, own_thread)?;
    let mut scribe = Scribe {
        shared,
        tail: Tail::new(directory, helper, length),
        log,
        keep: options.keep,
        blocks: length.get() / PAGE_BYTES - u64::from(FIRST_BLOCK),
        pages: PageTable::default(),
        segments: Segments::new(length),
        records: RecordMap::default(),
        parts: Parts::default(),
        kept,
        epoch: None,
        cleaner: Cleaner::default(),
        cold: options.cold.map(|ColdSegments { codec, after }| {
            Cold::new(Arc::clone(medium), directory, codec, after, own_thread)
        }),
        generation: newest.as_ref().map_or(0, |newest| newest.slot.generation),
        durable: LogPlace { segment: first, block: 0 },
        pending: Vec::new(),
        status: LogStatus::default(),
        packed: Packed::default(),
    };
    if let Some(newest) = &newest {
        // The first commit writes a full part: what a merged one would have to say is not known.
        let loaded = files.load(&newest.root, length)?;
        scribe.pages = loaded.pages;
        scribe.segments = loaded.segments;
        scribe.records = RecordMap::of(&loaded.records.into_set());
        for number in scribe.kept.iter().flat_map(|kept| &kept.segments) {
            scribe.segments.add(*number).ok_or_else(|| too_many(directory))?;
        }
    }
    for (number, _) in there.iter().filter(|(_, files)| files.codec().is_some()) {
        if let Some(state) = scribe.segments.get_mut(*number) {
            let length = files.take(*number)?.file_length();
            state.compressed = Some(Compressed::To(length));
        }
    }
    scribe.report();
    Ok(Opened { scribe, lock, newest })
}

/// The log's directory, made if need be, and held.
fn lock(medium: &dyn Medium, directory: &Path) -> Result<Box<dyn Lock>> {
    if medium.kind(directory)?.is_none() {
        match medium.create_directory(directory) {
            Err(error) if error.errno != sys::Errno::EEXIST => return Err(error.into()),
            _ => medium.sync_directory(parent(directory))?,
        }
    }
    medium.check_directory(directory)?;
    medium.lock(directory)?.ok_or_else(|| Error::LogBusy { path: directory.to_path_buf() })
}

/// What is kept, with the segments that it needs.
pub(super) fn kept(files: &mut LogFiles<'_>, newest: &Newest) -> Result<Vec<Kept>> {
    let mut entries = newest.root.kept.clone();
    let time_unix_ns = super::commit::unix_ns(&newest.root.commit);
    entries.push(image::LogKept {
        sequence: newest.slot.sequence,
        time_unix_ns,
        root: newest.slot.root.clone(),
    });
    let mut kept = Vec::with_capacity(entries.len());
    for entry in entries {
        let root = files.root(newest, entry.sequence)?;
        let named = root.map(|root| root.segments).unwrap_or_default();
        kept.push(Kept { segments: with_root(named, &entry.root), entry });
    }
    Ok(kept)
}

/// Segments of a checkpoint, those of its root among them.
pub(super) fn with_root(named: Vec<LogSegment>, root: &Blob) -> Vec<LogSegment> {
    let pieces = root.pieces.iter().map(|piece| piece.segment);
    named.into_iter().chain(pieces).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Segments that something refers to.
pub(super) fn needed(kept: &[Kept], newest: Option<&Newest>) -> BTreeSet<LogSegment> {
    let mut needed: BTreeSet<LogSegment> =
        kept.iter().flat_map(|kept| kept.segments.iter().copied()).collect();
    // The slot by which the newest was found.
    needed.extend(newest.map(|newest| newest.slot.segment));
    needed
}

/// Removes segments that nothing refers to, and makes the others durable where they may not be.
fn sweep(
    medium: &dyn Medium,
    directory: &Path,
    there: &BTreeMap<LogSegment, SegmentFiles>,
    kept: &[Kept],
    newest: Option<&Newest>,
) -> Result<()> {
    let needed = needed(kept, newest);
    let durable = newest.map_or(LogSegment(0), |newest| newest.slot.durable.segment);
    for (number, files) in there {
        let is_needed = needed.contains(number);
        let gone =
            if is_needed { files.leftovers(directory, *number) } else { files.paths(directory, *number) };
        gone.iter().try_for_each(|path| medium.remove_file(path))?;
        // One that was compressed was durable before.
        if is_needed && files.is_plain && *number >= durable {
            medium.sync_file(&segment_path(directory, *number))?;
        }
    }
    Ok(())
}

fn segment_length(options: &LogOptions) -> ByteCount {
    let asked = options.segment.get().clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    ByteCount(asked.next_multiple_of(PAGE_BYTES))
}

fn new_id() -> Result<LogId> {
    let mut id = [0; 16];
    let random = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    random.map_err(|errno| sys::Error::new("get random bytes", errno))?;
    Ok(LogId(id))
}

fn too_many(directory: &Path) -> Error {
    let what = "the number of segments";
    Error::encoding(directory, image::Error::TooLarge { part: image::Part::LogHeader, what })
}
