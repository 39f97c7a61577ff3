//! Reads the files of an undo log.
//!
//! The files of the epochs form a chain, which begins with the newest epoch and ends where a file is missing. A record
//! is *torn* if only its beginning was written.
//!
//! Owns: the choice of the files that belong to the chain, and the detection of broken epochs.
//! Invariants: a record is used only if its checksum is correct. A damaged epoch is broken, and [`ReadEpoch`] contains
//! the reason. A torn record at the end of the newest epoch is ignored, because the method that wrote the record has
//! not returned success. A record is torn only if its lengths are those that were written: a damaged length would hide
//! all records after it.
//! Does not: change a file.

use model::Sequence;

use sys::listener_holder;

use super::files::{UNWATCHED, epoch_name, ordinals};
use super::frame::{HEAD_BYTES, Head, NoHead};
use super::record::{self, AnyRecord, Header};
use super::storage::{LogFile, Storage};
use crate::error::{Result, UndoError};
use crate::key::Time;

/// The number of bytes that one read requests.
const WINDOW_BYTES: usize = 1 << 20;
/// The number of bytes that one read requests if the data between records is skipped.
const WINDOW_OF_RECORDS_BYTES: usize = 4 << 10;

/// The number of attempts to read a log of which files are removed meanwhile.
const READS_MAX: u32 = 10;

/// Which epochs are read with their data, so that damage is found in all of them. Of older epochs, only the records are
/// read, without a check of their checksums. A long run can have gigabytes of data in old epochs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    All,
    /// All epochs since this checkpoint.
    DownTo(Sequence),
    /// The newest epoch.
    Newest,
}

/// The content of a log.
#[derive(Debug)]
pub(crate) struct ReadLog {
    /// The chain of epochs, oldest first. The last entry is the present epoch.
    pub(crate) epochs: Vec<ReadEpoch>,
    /// Ordinal numbers of files outside the chain. Either a rollback has replaced these epochs, or the chain ends
    /// before these epochs.
    pub(crate) leftovers: Vec<u64>,
    /// The time at which the fd holder has seen the end of the subject. `None` if the fd holder has recorded no end.
    end_seen: Option<Time>,
}

/// What the last record of a log states about the subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Nothing. The subject may have changed files after the last record, without being watched.
    Unknown,
    /// No process of the subject has run since the last rollback.
    Idle,
    /// The subject ended at this time. Later changes come from other programs.
    At(Time),
}

/// The content of the file of one epoch.
#[derive(Debug, Default)]
pub(crate) struct ReadEpoch {
    pub(crate) ordinal: u64,
    /// The ordinal number of the previous epoch; 0 if this epoch is the first epoch.
    pub(crate) after: u64,
    pub(crate) boot: String,
    /// The time at which the epoch began.
    pub(crate) time: Option<Time>,
    /// The checkpoints that belong to this epoch. At each of them, the files had the same state as at the beginning of
    /// the epoch.
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) records: Vec<Entry>,
    /// The reason why the epoch is broken; `None` if the epoch is not broken.
    pub(crate) broken: Option<String>,
    /// Length of all complete frames, in bytes.
    pub(crate) length: u64,
    /// Whether a torn record follows the complete frames.
    pub(crate) is_torn: bool,
}

/// A record, and the location of the data in the same frame.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) record: AnyRecord,
    /// Offset of the data in the file of the epoch, in bytes.
    pub(crate) data_offset: u64,
    pub(crate) data_length: u64,
}

impl ReadLog {
    /// Returns what is known about the end of the subject.
    pub(crate) fn end(&self) -> End {
        match (self.epochs.last().map_or(End::Unknown, ReadEpoch::end), self.end_seen) {
            (End::Unknown, Some(time)) => End::At(time),
            (end, _) => end,
        }
    }

    /// Returns the lengths, at the end of the subject, of the files that the subject shared with its guardian: device,
    /// inode number and length in bytes.
    pub(crate) fn shared(&self) -> Vec<(u64, u64, u64)> {
        let last = self.epochs.last().and_then(|newest| newest.records.last());
        match last.map(|entry| &entry.record) {
            Some(AnyRecord::Ended(ended)) => {
                ended.lengths.iter().map(|one| (one.device, one.inode, one.bytes)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the checkpoints whose file state is the present state. The list is empty if files have changed since
    /// then, or if this is unknown.
    pub(crate) fn present(&self) -> &[Sequence] {
        let newest = self.epochs.last().filter(|newest| newest.broken.is_none() && newest.end() == End::Idle);
        newest.filter(|newest| newest.is_unchanged()).map_or(&[], |newest| &newest.sequences)
    }

    /// Returns the checkpoints that a rollback can reach, in rising order. Also returns the reason why the epoch before
    /// these checkpoints is broken, if there is such an epoch. An epoch that was written under another boot id than
    /// `boot` counts as broken.
    pub(crate) fn reachable(&self, boot: &str) -> (Vec<Sequence>, Option<String>) {
        let mut sequences = Vec::new();
        let mut why = None;
        for epoch in self.epochs.iter().rev() {
            why = epoch.broken_at(boot);
            if why.is_some() {
                break;
            }
            sequences.extend(epoch.sequences.iter().copied());
        }
        sequences.sort_unstable();
        (sequences, why)
    }
}

impl ReadEpoch {
    fn retract(&mut self, sequence: u64) {
        self.sequences.retain(|one| one.get() != sequence);
    }

    /// Returns what the last record of this epoch states about the end of the subject.
    pub(super) fn end(&self) -> End {
        match self.records.last().map(|entry| &entry.record) {
            Some(AnyRecord::Ended(ended)) => End::At(ended.time),
            Some(AnyRecord::Idle(_)) => End::Idle,
            _ => End::Unknown,
        }
    }

    /// Reports whether the epoch contains no state of a file.
    pub(super) fn is_unchanged(&self) -> bool {
        !self.records.iter().any(|entry| entry.record.is_state())
    }

    /// Returns the reason why this epoch is broken. An epoch that was written under another boot id than `boot` counts
    /// as broken.
    pub(crate) fn broken_at(&self, boot: &str) -> Option<String> {
        let is_older = || "it was written before the machine was last started".to_owned();
        self.broken.clone().or_else(|| (self.boot != boot).then(is_older)).map(|why| {
            let since = self.sequences.first();
            let since = since.map_or_else(String::new, |first| format!(" since checkpoint {}", first.get()));
            format!("the recorded changes of files{since} are incomplete: {why}")
        })
    }
}

/// Reads a log. Meanwhile, the writer of the log may remove files.
///
/// # Errors
///
/// A file cannot be read. Damaged content is not an error: the damaged epoch is broken.
pub(crate) fn read(storage: &dyn Storage, depth: Depth) -> Result<ReadLog> {
    let mut left = READS_MAX;
    loop {
        left -= 1;
        match read_once(storage, depth) {
            Err(UndoError::Kernel(error)) if left > 0 && error.errno.is_of_missing_file() => {}
            outcome => return outcome,
        }
    }
}

fn read_once(storage: &dyn Storage, depth: Depth) -> Result<ReadLog> {
    let mut ordinals = ordinals(storage)?;
    ordinals.sort_unstable();
    let mut epochs = Vec::new();
    let mut leftovers = Vec::new();
    let mut wanted = None;
    let mut is_deep = true;
    while let Some(ordinal) = ordinals.pop() {
        if wanted.is_some_and(|wanted| ordinal != wanted) {
            leftovers.push(ordinal);
            continue;
        }
        let file = storage.open(&epoch_name(ordinal))?;
        let is_newest = wanted.is_none();
        let Some(epoch) = read_epoch(&*file, ordinal, is_newest, is_deep)? else { continue };
        wanted = Some(epoch.after);
        is_deep &= match depth {
            Depth::All => true,
            Depth::DownTo(sequence) => !epoch.sequences.contains(&sequence),
            Depth::Newest => false,
        };
        epochs.push(epoch);
    }
    let mut end_seen = None;
    match read_mark(storage)? {
        Mark::Nothing => {}
        Mark::End(time) => end_seen = Some(time),
        Mark::Unwatched => {
            if let Some(newest) = epochs.first_mut().filter(|newest| newest.broken.is_none()) {
                newest.broken = Some("the subject has run without being watched".to_owned());
            }
        }
    }
    for index in 0..epochs.len() {
        let (newer, older) = epochs.split_at_mut(index + 1);
        for entry in &newer[index].records {
            if let AnyRecord::Retracted(record) = &entry.record {
                older.iter_mut().for_each(|epoch| epoch.retract(record.sequence));
            }
        }
    }
    epochs.reverse();
    Ok(ReadLog { epochs, leftovers, end_seen })
}

/// The content of the file [`UNWATCHED`].
enum Mark {
    Nothing,
    /// The fd holder has seen the end of the subject, at this time.
    End(Time),
    /// The subject has run without being watched.
    Unwatched,
}

fn read_mark(storage: &dyn Storage) -> Result<Mark> {
    if !storage.names()?.iter().any(|name| name == UNWATCHED) {
        return Ok(Mark::Nothing);
    }
    let file = storage.open(UNWATCHED)?;
    let mut text = [0; listener_holder::MARKS_BYTES_MAX];
    let length = file.read(0, &mut text)?;
    Ok(match listener_holder::end_of(&text[..length]) {
        _ if length == 0 => Mark::Nothing,
        _ if length == text.len() => Mark::Unwatched,
        Some(time) => Mark::End(time.into()),
        None => Mark::Unwatched,
    })
}

/// Reads the file of one epoch; with `is_deep`, also its data, and checks the checksums. Returns `None` for a file without
/// a complete header that was created in advance for the next epoch.
pub(super) fn read_epoch(
    file: &dyn LogFile,
    ordinal: u64,
    is_newest: bool,
    is_deep: bool,
) -> Result<Option<ReadEpoch>> {
    let mut frames = Frames { is_deep, ..Frames::of(file)? };
    let mut epoch = ReadEpoch { ordinal, ..ReadEpoch::default() };
    match frames.next(0)? {
        Frame::End | Frame::Torn if is_newest => return Ok(None),
        Frame::Whole(Entry { record: AnyRecord::Header(header), .. }, end) if header.ordinal == ordinal => {
            let Header { boot, after, sequences, time, .. } = header;
            let sequences = sequences.into_iter().map(Sequence).collect();
            epoch = ReadEpoch { boot, after, sequences, time, length: end, ..epoch };
        }
        Frame::Bad(why) => epoch.broken = Some(why),
        _ => epoch.broken = Some("it has no valid header".to_owned()),
    }
    while epoch.broken.is_none() {
        match frames.next(epoch.length)? {
            Frame::End => break,
            Frame::Torn if is_newest => {
                epoch.is_torn = true;
                break;
            }
            Frame::Torn => epoch.broken = Some("it ends in a torn record".to_owned()),
            Frame::Bad(why) => epoch.broken = Some(why),
            Frame::Whole(entry, end) => {
                epoch.length = end;
                match &entry.record {
                    AnyRecord::Broken(broken) => epoch.broken = Some(broken.why.clone()),
                    AnyRecord::Exact(exact) => epoch.sequences.push(Sequence(exact.sequence)),
                    AnyRecord::Retracted(record) => epoch.retract(record.sequence),
                    _ => {}
                }
                epoch.records.push(entry);
            }
        }
    }
    Ok(Some(epoch))
}

/// Reads the records of a small file of frames, and stops before the first torn or damaged frame. Also returns the
/// offset after the last complete frame.
pub(crate) fn read_frames(file: &dyn LogFile) -> Result<(Vec<AnyRecord>, u64)> {
    let mut frames = Frames::of(file)?;
    let (mut records, mut at) = (Vec::new(), 0);
    while let Frame::Whole(entry, end) = frames.next(at)? {
        records.push(entry.record);
        at = end;
    }
    Ok((records, at))
}

enum Frame {
    /// A complete frame: the record, and the offset of the next frame.
    Whole(Entry, u64),
    End,
    Torn,
    Bad(String),
}

/// Reads the frames of a file through a buffer.
struct Frames<'a> {
    file: &'a dyn LogFile,
    length: u64,
    window: Vec<u8>,
    start: u64,
    /// Whether data is read, and checksums are checked.
    is_deep: bool,
}

impl<'a> Frames<'a> {
    fn of(file: &'a dyn LogFile) -> Result<Self> {
        Ok(Self { file, length: file.length()?, window: Vec::new(), start: 0, is_deep: true })
    }

    fn next(&mut self, at: u64) -> Result<Frame> {
        let rest = self.length.saturating_sub(at);
        if rest == 0 {
            return Ok(Frame::End);
        }
        let damaged = || Frame::Bad("it holds a damaged record".to_owned());
        let head = match Head::of(self.bytes(at, HEAD_BYTES.min(rest as usize))?) {
            Ok(head) => head,
            Err(NoHead::Torn) => return Ok(Frame::Torn),
            Err(NoHead::Damaged) => return Ok(damaged()),
        };
        let data_offset = at + (head.bytes + head.record) as u64;
        let end = at + head.frame_bytes() as u64;
        if end > self.length {
            return Ok(Frame::Torn);
        }
        let bytes = self.bytes(at + head.bytes as u64, head.record)?.to_vec();
        if self.is_deep {
            let mut sum = head.sum(&bytes);
            let mut offset = data_offset;
            while offset < end {
                let part = self.bytes(offset, WINDOW_BYTES.min((end - offset) as usize))?;
                sum = sum.extend(part);
                offset += part.len() as u64;
            }
            if !head.is_sum(sum) {
                return Ok(damaged());
            }
        }
        Ok(match record::decode(&bytes) {
            Ok(record) => Frame::Whole(Entry { record, data_offset, data_length: head.data as u64 }, end),
            Err(why) => Frame::Bad(format!("it {why}")),
        })
    }

    /// Returns `length` bytes at the offset `at`. The caller has checked that this range is within the file.
    fn bytes(&mut self, at: u64, length: usize) -> Result<&[u8]> {
        let end = at + length as u64;
        if at < self.start || end > self.start + self.window.len() as u64 {
            let rest = usize::try_from(self.length - at).unwrap_or(usize::MAX);
            let window = if self.is_deep { WINDOW_BYTES } else { WINDOW_OF_RECORDS_BYTES };
            self.window.resize(length.max(window.min(rest)), 0);
            let read = self.file.read(at, &mut self.window)?;
            self.window.truncate(read);
            self.start = at;
            // If the file has become shorter since the check, the missing bytes are replaced by zeros, and the checksum
            // is wrong.
            self.window.resize(read.max(length), 0);
        }
        let from = (at - self.start) as usize;
        Ok(&self.window[from..from + length])
    }
}
