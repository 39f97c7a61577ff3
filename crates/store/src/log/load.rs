//! Reads the content of a log: the newest commit, the roots (checkpoint descriptions), and the state that the index
//! parts of a root describe.
//!
//! Owns: the rule for the newest commit; checks of data that may not be durable.
//! Invariants: a slot states which data was durable when the slot was written. After a crash, the remaining data may be
//! incomplete. A commit is valid only if a check finds the remaining data complete. Damage to durable data is reported,
//! and never hidden by the use of an older checkpoint.
//! Does not: write to the log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use image::{
    Blob, Checksum, LOG_BLOCK_BYTES, LogHeader, LogKept, LogPart, LogPlace, LogRoot, LogSegment, LogSlot,
    Part, Record, RecordKey,
};
use model::{ByteCount, PAGE_BYTES, Sequence};
use sys::Errno;

use super::layout::{self, FIRST_BLOCK, segment_path};
use super::segments::{SegmentLengths, Segments};
use super::table::{PageContent, PageTable};
use crate::error::{Error, Result};
use crate::medium::Medium;
use crate::reader::Segment;

/// The maximum size of a blob (a byte sequence such as an index part). The index of a subject of 16 TiB is much
/// smaller.
const BLOB_BYTES_MAX: u64 = 64 << 30;

/// The newest commit of a log.
#[derive(Clone, Debug)]
pub(super) struct Newest {
    pub(super) slot: LogSlot,
    pub(super) root: LogRoot,
    /// The size of the segment with the slot, in bytes.
    pub(super) length: ByteCount,
    /// A commit with a higher sequence number that was durable and is now damaged, and the error of reading this
    /// commit.
    pub(super) damaged: Option<(Sequence, Error)>,
}

/// Pages, segments and records of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) pages: PageTable,
    pub(super) segments: Segments,
    /// The records. Records of the same kind and owner are in their original order.
    pub(super) records: BTreeMap<RecordKey, Record>,
}

impl Newest {
    /// Returns the sequence numbers of the log's checkpoints, sorted. Includes the damaged checkpoint, if there is
    /// one.
    pub(super) fn sequences(&self) -> impl Iterator<Item = Sequence> {
        let damaged = self.damaged.as_ref().map(|(sequence, _)| *sequence);
        let kept = self.root.kept.iter().map(|kept| kept.sequence);
        kept.chain([self.slot.sequence]).chain(damaged)
    }
}

/// The directory of a log, and the segments opened so far.
#[derive(Debug)]
pub(super) struct LogFiles<'a> {
    pub(super) medium: &'a dyn Medium,
    pub(super) directory: PathBuf,
    open: BTreeMap<LogSegment, Segment>,
}

impl<'a> LogFiles<'a> {
    pub(super) fn new(medium: &'a dyn Medium, directory: &Path) -> Self {
        Self { medium, directory: directory.to_path_buf(), open: BTreeMap::new() }
    }

    /// Returns the newest complete commit; `None` if the log has no commit.
    pub(super) fn newest(&mut self) -> Result<Option<Newest>> {
        let mut damaged = None;
        let there = layout::segments(self.medium, &self.directory)?;
        for number in there.iter().rev() {
            let Some(mut newest) = self.newest_in(*number, &mut damaged)? else { continue };
            let Some(later) = damaged.take() else { return Ok(Some(newest)) };
            // A newer commit is damaged. The writer may have removed segments that only older commits need.
            // Therefore an older commit is used only if all its segments exist.
            if !self.has_all(&newest.root, &there) {
                damaged = Some(later);
                continue;
            }
            let kept = std::mem::take(&mut newest.root.kept).into_iter();
            let still_there =
                |kept: &LogKept| self.read_root(&kept.root).is_ok_and(|root| self.has_all(&root, &there));
            newest.root.kept = kept.filter(still_there).collect();
            newest.damaged = Some(later).filter(|(sequence, _)| *sequence > newest.slot.sequence);
            return Ok(Some(newest));
        }
        damaged.map_or(Ok(None), |(_, error)| Err(error))
    }

    /// Returns the root of a checkpoint; `None` if the log does not keep the checkpoint. Fails with the error of
    /// reading the root.
    pub(super) fn root(&mut self, newest: &Newest, sequence: Sequence) -> Result<Option<LogRoot>> {
        if let Some((damaged, error)) = &newest.damaged
            && *damaged == sequence
        {
            return Err(error.clone());
        }
        if newest.slot.sequence == sequence {
            return Ok(Some(newest.root.clone()));
        }
        match newest.root.kept.iter().find(|kept| kept.sequence == sequence) {
            Some(kept) => self.read_root(&kept.root).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the pages and records that the parts of a root describe.
    pub(super) fn load(&mut self, root: &LogRoot, length: ByteCount) -> Result<Loaded> {
        self.load_with(root, SegmentLengths::all(length))
    }

    /// Returns the same as `load`. The segments of the log have these lengths.
    pub(super) fn load_with(&mut self, root: &LogRoot, lengths: SegmentLengths) -> Result<Loaded> {
        let mut segments = Segments::new(lengths);
        for number in &root.segments {
            if segments.add(*number).is_none() {
                return Err(self.damaged(*number, Part::LogRoot, "more segments than can be"));
            }
        }
        let mut loaded = Loaded { pages: PageTable::default(), segments, records: BTreeMap::new() };
        for part in &root.parts {
            let bytes = self.read_blob(&part.blob)?;
            let segment = part.blob.place().segment;
            let part = LogPart::decode(&bytes).map_err(|error| self.decoding(segment, error))?;
            loaded.apply(part).map_err(|what| self.damaged(segment, Part::LogPart, what))?;
        }
        loaded.segments.count(&loaded.pages);
        // Early parts may name a segment whose pages were all superseded by later parts. The root does not name
        // this segment.
        let strays: Vec<_> =
            loaded.segments.iter().filter(|state| !root.segments.contains(&state.number)).copied().collect();
        for stray in strays {
            if stray.live > 0 {
                return Err(self.damaged(stray.number, Part::LogRoot, "pages in a segment it does not name"));
            }
            loaded.segments.remove(stray.number);
        }
        Ok(loaded)
    }

    /// Returns a segment from the table of open segments, or opens the segment.
    pub(super) fn take(&mut self, number: LogSegment) -> Result<Segment> {
        match self.open.remove(&number) {
            Some(segment) => Ok(segment),
            None => layout::open_segment(self.medium, &self.directory, number),
        }
    }

    /// Returns the lengths of these segments, which are in rising order, and of new segments. A damaged or missing segment
    /// counts as long as the one before it.
    pub(super) fn lengths(
        &mut self,
        segments: &BTreeSet<LogSegment>,
        (new, length): (LogSegment, ByteCount),
    ) -> Result<SegmentLengths> {
        let mut lengths: Option<SegmentLengths> = None;
        for number in segments {
            let length = match self.open.get(number) {
                Some(segment) => segment.length,
                None => match layout::open_segment(self.medium, &self.directory, *number) {
                    Ok(segment) => segment.length,
                    Err(error) if is_absence(&error) => continue,
                    Err(error) => return Err(error),
                },
            };
            lengths.get_or_insert_with(|| SegmentLengths::all(length)).set_from(*number, length);
        }
        let mut lengths = lengths.unwrap_or_else(|| SegmentLengths::all(length));
        lengths.set_from(new, length);
        Ok(lengths)
    }

    /// Reports whether all segments that a root names are in the sorted list `there`.
    fn has_all(&self, root: &LogRoot, there: &[LogSegment]) -> bool {
        root.segments.iter().all(|number| there.binary_search(number).is_ok())
    }

    fn newest_in(
        &mut self,
        number: LogSegment,
        damaged: &mut Option<(Sequence, Error)>,
    ) -> Result<Option<Newest>> {
        // If the writer has removed the segment since the listing, `head` fails. The caller then lists the segments
        // again, and does not use an older segment of the outdated list.
        let head = layout::head(self.medium, &self.directory, number)?;
        let blocks: Vec<&[u8]> = head.chunks_exact(LOG_BLOCK_BYTES as usize).collect();
        // A slot contains all necessary fields, so a damaged header is ignored. A valid header must not contradict
        // the slot.
        let header = blocks.first().and_then(|block| LogHeader::decode(block).ok());
        let belongs = |slot: &LogSlot| {
            slot.segment == number
                && header.is_none_or(|header| (header.segment, header.log) == (number, slot.log))
        };
        let slots = blocks.iter().skip(1).filter_map(|block| LogSlot::decode(block).ok());
        let mut slots: Vec<LogSlot> = slots.filter(belongs).collect();
        if slots.is_empty() {
            return Ok(None);
        }
        let length = self.segment(number)?.length;
        slots.sort_unstable_by_key(|slot| std::cmp::Reverse(slot.generation));
        for slot in slots {
            let was_durable = slot.root.place() < slot.durable;
            match self.check(&slot, length) {
                Ok(root) => return Ok(Some(Newest { slot, root, length, damaged: None })),
                Err(error) if !is_absence(&error) => return Err(error),
                // The commit was durable and is damaged. The damage is recorded, and the search continues with the
                // previous commit.
                Err(error) if was_durable => drop(damaged.get_or_insert((slot.sequence, error))),
                // The commit was never complete, so the search continues with the previous commit.
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Reads the root of a slot, and checks all data that was not durable when the slot was written.
    fn check(&mut self, slot: &LogSlot, length: ByteCount) -> Result<LogRoot> {
        let mut root = self.read_root(&slot.root)?;
        if root.commit.sequence != slot.sequence {
            return Err(self.damaged(slot.segment, Part::LogRoot, "a root of another checkpoint"));
        }
        if slot.root.place() < slot.durable {
            return Ok(root);
        }
        self.check_pages(&root, length, slot.durable)?;
        // One sync can cover several checkpoints. Before the sync, each checkpoint may be complete or incomplete,
        // so each checkpoint is checked.
        let mut kept = Vec::with_capacity(root.kept.len());
        for entry in std::mem::take(&mut root.kept) {
            if entry.root.place() < slot.durable || self.is_whole(&entry, length, slot.durable)? {
                kept.push(entry);
            }
        }
        root.kept = kept;
        Ok(root)
    }

    fn is_whole(&mut self, kept: &LogKept, length: ByteCount, from: LogPlace) -> Result<bool> {
        let checked = self.read_root(&kept.root).and_then(|root| self.check_pages(&root, length, from));
        match checked {
            Ok(()) => Ok(true),
            Err(error) if is_absence(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads and verifies the pages of a checkpoint that are stored at or after the place `from`.
    fn check_pages(&mut self, root: &LogRoot, length: ByteCount, from: LogPlace) -> Result<()> {
        let loaded = self.load(root, length)?;
        let mut page = vec![0; PAGE_BYTES as usize];
        for (space, number, content) in loaded.pages.iter() {
            let PageContent::At(block_index, checksum) = content else { continue };
            let place = loaded.segments.place(block_index);
            if place < from {
                continue;
            }
            let segment = self.segment(place.segment)?;
            segment.pages.read(&mut page, place.offset())?;
            layout::check_page(&segment.path, (space, number), place.offset(), checksum, &page)?;
        }
        Ok(())
    }

    fn read_root(&mut self, blob: &Blob) -> Result<LogRoot> {
        let bytes = self.read_blob(blob)?;
        LogRoot::decode(&bytes).map_err(|error| self.decoding(blob.place().segment, error))
    }

    fn read_blob(&mut self, blob: &Blob) -> Result<Vec<u8>> {
        let first = blob.place().segment;
        if blob.length().get() > BLOB_BYTES_MAX {
            return Err(self.damaged(first, Part::LogPart, "longer than anything that is written"));
        }
        let mut bytes = Vec::new();
        for piece in &blob.pieces {
            // The length is compared with the file first. Otherwise a damaged length could cause a huge allocation.
            let segment = self.segment(piece.segment)?;
            if piece.offset.get() + piece.length.get() > segment.length.get() {
                return Err(self.damaged(piece.segment, Part::LogPart, "a piece behind the end"));
            }
            let begin = bytes.len();
            bytes.resize(begin + piece.length.get() as usize, 0);
            segment.pages.read(&mut bytes[begin..], piece.offset)?;
        }
        let computed = Checksum::of(&bytes);
        if computed != blob.checksum {
            let source = image::Error::ChecksumMismatch {
                part: Part::LogPart,
                offset: blob.place().offset(),
                stored: blob.checksum,
                computed,
            };
            return Err(self.decoding(first, source));
        }
        Ok(bytes)
    }

    fn segment(&mut self, number: LogSegment) -> Result<&Segment> {
        if !self.open.contains_key(&number) {
            self.open.insert(number, layout::open_segment(self.medium, &self.directory, number)?);
        }
        Ok(&self.open[&number])
    }

    fn damaged(&self, segment: LogSegment, part: Part, what: &'static str) -> Error {
        let offset = ByteCount(u64::from(FIRST_BLOCK) * LOG_BLOCK_BYTES);
        self.decoding(segment, image::Error::Malformed { part, offset, what })
    }

    fn decoding(&self, segment: LogSegment, error: image::Error) -> Error {
        match self.open.get(&segment) {
            Some(segment) => Error::decoding(&segment.path, error),
            None => Error::decoding(&segment_path(&self.directory, segment), error),
        }
    }
}

impl Loaded {
    /// Applies the changes of an index part.
    fn apply(&mut self, part: LogPart) -> std::result::Result<(), &'static str> {
        if part.full {
            self.pages.clear();
            self.records.clear();
        }
        for (space, range) in &part.dropped {
            let pages = range.start.get() / PAGE_BYTES..range.end.get() / PAGE_BYTES;
            self.pages.remove(*space, pages, |_| {});
        }
        for (run, checksums) in part.runs() {
            let first = run.start.get() / PAGE_BYTES;
            let Some(place) = run.place else {
                for page in first..first + run.pages.get() {
                    self.pages.set(run.space, page, PageContent::Zero);
                }
                continue;
            };
            self.segments.add(place.segment).ok_or("more segments than can be")?;
            for (number, checksum) in checksums.iter().enumerate() {
                let place = LogPlace { segment: place.segment, block: place.block + number as u32 };
                let block_index =
                    self.segments.block_index(place).ok_or("pages behind the end of a segment")?;
                self.pages.set(run.space, first + number as u64, PageContent::At(block_index, *checksum));
            }
        }
        part.removed.iter().for_each(|key| drop(self.records.remove(key)));
        for (ordinal, record) in part.records {
            let key = RecordKey { kind: record.kind.clone(), owner: record.owner, ordinal };
            self.records.insert(key, record);
        }
        Ok(())
    }
}

/// Reports whether the error means that data is missing or wrong. With any other error, correct data may exist, but
/// could not be read.
fn is_absence(error: &Error) -> bool {
    match error {
        Error::Io(error) => error.errno == Errno::ENOENT,
        error => error.is_damage(),
    }
}
