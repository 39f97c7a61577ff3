//! The undo log of a subject: records earlier file states, and removes old epochs.
//!
//! A log is a directory with one file for each epoch, which names the previous epoch. Further checkpoints belong to an
//! epoch until a file changes. A rollback to a checkpoint applies the records of all epochs since the checkpoint.
//!
//! Owns: the writer, the retention of epochs and the size limit. Submodules own records, log files and reading.
//! Invariants: a written record is in the page cache when the method returns. If a write fails, the partial record is
//! removed, or the epoch accepts no more records. A log file is removed before the links that its records name.
//! Does not: decide what is recorded.

mod end;
mod files;
pub(crate) mod frame;
mod join;
mod joint;
pub(crate) mod journal;
pub mod keep;
mod opened_file;
mod pause;
pub(crate) mod reader;
pub(crate) mod record;
mod removal;
mod reserve;
mod retract;
mod shadow;
mod states;
pub(crate) mod storage;
pub(crate) mod target;
#[cfg(test)]
mod tests;
pub(crate) mod write_queue;
mod writes;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{ByteCount, Sequence};

use crate::error::{Result, UndoError};
pub use files::UNWATCHED;
pub(crate) use files::epoch_name;
use files::{clear_mark, new_file};
use joint::Joining;
pub use joint::{Joined, Joint};
use reader::{Depth, End, ReadEpoch};
use record::{AnyRecord, Kind};
use removal::kept_of;
pub(crate) use removal::{clear, remove_leftovers};
pub(crate) use reserve::remove_reserve;
use storage::{DiskStorage, LogFile, Storage};
pub use writes::{Prepared, Writes};

/// The id of a directory in records of the present epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectoryId(pub u32);

/// The id of an inode in records of the present epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InodeId(pub u32);

/// The writer of an undo log. The caller records a name, an inode or a range only before the first change in an epoch.
#[derive(Debug)]
pub struct UndoLog {
    storage: Arc<dyn Storage>,
    boot: String,
    bytes_max: u64,
    /// The epochs, oldest first. The last entry is the present epoch.
    epochs: VecDeque<Epoch>,
    file: Box<dyn LogFile>,
    spare: Option<Box<dyn LogFile>>,
    kept: HashMap<PathBuf, Kept>,
    bytes: u64,
    ids: Ids,
    /// What the last record states about the end of the subject.
    end: End,
    /// Whether the present file ends with a torn record that could not be truncated.
    is_torn: bool,
    joining: Joining,
}

/// Limit for the records that add checkpoints to one epoch, in bytes: some thousand checkpoints.
const SEQUENCES_BYTES_MAX: u64 = 64 << 10;

/// The state of one epoch in the writer.
#[derive(Debug, Default)]
struct Epoch {
    ordinal: u64,
    sequences: Vec<Sequence>,
    /// Bytes of the records that add checkpoints to this epoch.
    sequences_bytes: u64,
    length: u64,
    kept: Vec<PathBuf>,
    is_empty: bool,
    is_broken: bool,
}

/// How many ids the records of the present epoch use.
#[derive(Clone, Copy, Debug, Default)]
struct Ids {
    directories: u32,
    inodes: u32,
    rights: u32,
}

/// A link or a copy in a keep directory.
#[derive(Debug, Default)]
struct Kept {
    epochs: u32,
    bytes: u64,
}

impl UndoLog {
    /// Creates a log whose first epoch begins at checkpoint `start`. Creates a missing `directory` with mode 0700.
    /// Removes an existing log in `directory`, but not the files that a rollback has moved aside.
    pub fn create(directory: &Path, start: Sequence, bytes_max: ByteCount) -> Result<Self> {
        Self::create_on(Box::new(DiskStorage::open_or_create(directory)?.with_reserve()), start, bytes_max)
    }

    pub(crate) fn create_on(
        storage: Box<dyn Storage>,
        start: Sequence,
        bytes_max: ByteCount,
    ) -> Result<Self> {
        let newest = clear(&*storage)?;
        if newest > 0 {
            // After a power cut, the removed log could return with checkpoints that have the numbers of new ones.
            storage.sync()?;
        }
        let epoch = Epoch { ordinal: newest + 1, ..Epoch::default() };
        let file = new_file(&*storage, epoch.ordinal)?;
        let boot = storage.boot()?;
        let mut log = Self::on(storage, boot, bytes_max, file);
        log.begin(epoch.ordinal, 0, start)?;
        Ok(log)
    }

    /// Opens an existing log and continues its newest epoch. Removes links and copies that no record names. If the
    /// subject has run unwatched since the end of the previous writer, the file [`UNWATCHED`] must contain data.
    ///
    /// # Errors
    ///
    /// The log contains no epoch, a file cannot be used, or a rollback was interrupted.
    pub fn open(directory: &Path, bytes_max: ByteCount) -> Result<Self> {
        Self::open_on(Box::new(DiskStorage::open(directory)?.with_reserve()), bytes_max)
    }

    pub(crate) fn open_on(storage: Box<dyn Storage>, bytes_max: ByteCount) -> Result<Self> {
        let read = reader::read(&*storage, Depth::Newest)?;
        let Some(present) = read.epochs.last() else {
            return Err(UndoError::NoLog { directory: storage.path() });
        };
        if let Some(begun) = journal::read(&*storage, &read)? {
            return Err(UndoError::HalfBack {
                to: begun.to,
                why: "and nothing can be recorded until the rollback is complete".to_owned(),
            });
        }
        remove_leftovers(&*storage, &read)?;
        let boot = storage.boot()?;
        let file = storage.open(&epoch_name(present.ordinal))?;
        if present.is_torn {
            file.truncate(present.length)?;
        }
        let why = present.broken_at(&boot);
        let end = present.end();
        let mut log = Self::on(storage, boot, bytes_max, file);
        log.end = end;
        for epoch in &read.epochs {
            log.take_over(epoch)?;
        }
        for (epoch, read) in log.epochs.iter_mut().zip(&read.epochs).rev().skip(1) {
            epoch.is_broken = read.broken_at(&log.boot).is_some();
        }
        if let Some(why) = why {
            log.broken(&why)?;
        }
        clear_mark(&*log.storage)?;
        Ok(log)
    }

    /// Adds an epoch that was read to the state of the writer.
    fn take_over(&mut self, read: &ReadEpoch) -> Result<()> {
        let mut epoch = Epoch {
            ordinal: read.ordinal,
            sequences: read.sequences.clone(),
            sequences_bytes: 0,
            length: read.length,
            kept: kept_of(read).map(Path::to_path_buf).collect(),
            is_empty: read.is_unchanged(),
            is_broken: read.records.iter().any(|entry| matches!(entry.record, AnyRecord::Broken(_))),
        };
        epoch.is_broken |= read.length == 0;
        self.bytes += epoch.length;
        for path in &epoch.kept {
            if !self.kept.contains_key(path) {
                let bytes = self.storage.kept_bytes(path).unwrap_or(ByteCount(0)).get();
                self.kept.insert(path.clone(), Kept { epochs: 0, bytes });
                self.bytes += bytes;
            }
            if let Some(kept) = self.kept.get_mut(path) {
                kept.epochs += 1;
            }
        }
        self.ids = Ids::default();
        for entry in &read.records {
            match &entry.record {
                AnyRecord::Directory(directory) => self.ids.directories = directory.id + 1,
                AnyRecord::Inode(inode) => self.ids.inodes = inode.id + 1,
                AnyRecord::Rights(rights) => self.ids.rights = rights.id,
                _ => {}
            }
        }
        self.epochs.push_back(epoch);
        Ok(())
    }

    fn on(storage: Box<dyn Storage>, boot: String, bytes_max: ByteCount, file: Box<dyn LogFile>) -> Self {
        Self {
            storage: storage.into(),
            boot,
            bytes_max: bytes_max.get(),
            epochs: VecDeque::new(),
            file,
            spare: None,
            kept: HashMap::new(),
            bytes: 0,
            ids: Ids::default(),
            end: End::Unknown,
            is_torn: false,
            joining: Joining::default(),
        }
    }

    /// Records that the present state of files is the state at checkpoint `sequence`. Begins a new epoch and returns
    /// `true`; earlier ids become invalid. If the present epoch has no records, adds `sequence` to this epoch and
    /// returns `false`. Runs inside the pause; creates no file after [`Self::prepared`].
    pub fn boundary(&mut self, sequence: Sequence) -> Result<bool> {
        let present = self.present();
        if present.is_empty && !present.is_broken && !self.is_long() {
            self.same(sequence)?;
            return Ok(false);
        }
        if self.storage.is_short() {
            // A new epoch records content again that the present epoch has already recorded.
            return Err(UndoError::Short { directory: self.storage.path() });
        }
        let after = self.present().ordinal;
        let next = match self.spare.take() {
            Some(spare) => spare,
            None => new_file(&*self.storage, after + 1)?,
        };
        let previous = std::mem::replace(&mut self.file, next);
        self.begin(after + 1, after, sequence).inspect_err(|_| {
            let unused = std::mem::replace(&mut self.file, previous);
            // The reader ignores a newest file without a complete header. The file can thus be used for the next epoch.
            self.spare = unused.truncate(0).is_ok().then_some(unused);
        })?;
        Ok(true)
    }

    /// Adds checkpoint `sequence` to the present epoch. The caller guarantees that no file has changed since the epoch
    /// began. The existing records describe the state at the beginning, which is still the present state.
    pub fn same(&mut self, sequence: Sequence) -> Result<()> {
        let before = self.bytes;
        self.append(&record::Exact { sequence: sequence.get() }, &[])?;
        let written = self.bytes - before;
        let present = self.present_mut();
        present.sequences_bytes += written;
        present.sequences.push(sequence);
        Ok(())
    }

    /// Marks the present epoch as broken: no rollback can cross the epoch, and no more file states are recorded.
    pub fn broken(&mut self, why: &str) -> Result<()> {
        if self.present().is_broken {
            return Ok(());
        }
        if self.append(&record::Broken { why: why.to_owned() }, &[]).is_err() {
            self.spoil()?;
        }
        let present = self.present_mut();
        present.is_broken = true;
        present.is_empty = false;
        Ok(())
    }

    /// Reports whether the present epoch has too many checkpoints, so that a new epoch should begin. Without this
    /// limit, the file of an epoch could grow for ever if no file changes.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.present().sequences_bytes > SEQUENCES_BYTES_MAX
    }

    /// Retains the checkpoints in `kept` (in rising order) and newer checkpoints. Removes epochs older than the first.
    pub fn retain(&mut self, kept: &[Sequence]) -> Result<()> {
        let (Some(oldest), Some(newest)) = (kept.first(), kept.last()) else { return Ok(()) };
        self.forget_before(*oldest)?;
        for epoch in &mut self.epochs {
            epoch.sequences.retain(|one| one > newest || kept.binary_search(one).is_ok());
        }
        Ok(())
    }

    /// Removes the oldest epochs whose checkpoints are all before `oldest`. Does nothing after [`Self::ended`]:
    /// removing a link changes the ctime of the inode, which a rollback would take for a change by another program.
    pub fn forget_before(&mut self, oldest: Sequence) -> Result<()> {
        let is_before = |epoch: &Epoch| epoch.sequences.iter().all(|sequence| *sequence < oldest);
        while !matches!(self.end, End::At(_))
            && self.epochs.len() > 1
            && self.epochs.front().is_some_and(is_before)
        {
            self.drop_oldest()?;
        }
        Ok(())
    }

    /// Returns the checkpoints that a rollback can reach, in rising order.
    #[must_use]
    pub fn sequences(&self) -> Vec<Sequence> {
        let whole = self.epochs.iter().rev().take_while(|epoch| !epoch.is_broken);
        let mut sequences: Vec<_> = whole.flat_map(|epoch| epoch.sequences.iter().copied()).collect();
        sequences.sort_unstable();
        sequences
    }

    /// Returns the size of all epochs and of the files in keep directories, in bytes.
    pub fn bytes(&self) -> ByteCount {
        ByteCount(self.bytes)
    }

    fn present(&self) -> &Epoch {
        self.epochs.back().expect("a log has a present epoch from its creation on")
    }

    fn present_mut(&mut self) -> &mut Epoch {
        self.epochs.back_mut().expect("a log has a present epoch from its creation on")
    }

    /// Begins a new epoch in `self.file`, which the caller has set: writes the header.
    fn begin(&mut self, ordinal: u64, after: u64, sequence: Sequence) -> Result<()> {
        let header = record::Header {
            boot: self.boot.clone(),
            ordinal,
            after,
            sequences: vec![sequence.get()],
            time: Some(self.storage.now()),
        };
        let frame = frame::encode(&header, &[]);
        self.file.write(0, [&frame, &[]])?;
        let length = frame.len() as u64;
        let sequences = vec![sequence];
        self.epochs.push_back(Epoch { ordinal, sequences, length, is_empty: true, ..Epoch::default() });
        self.bytes += length;
        self.ids = Ids::default();
        (self.end, self.is_torn) = (End::Unknown, false);
        Ok(())
    }

    /// Appends a record of a file state. Removes the oldest epochs if the log would exceed its size limit.
    fn state<Body: Kind>(&mut self, body: &Body, data: &[u8]) -> Result<()> {
        if self.present().is_broken {
            return Ok(());
        }
        self.drop_until_fits((body.encoded_len() + data.len()) as u64)?;
        self.append(body, data)?;
        self.present_mut().is_empty = false;
        Ok(())
    }

    /// Appends a record that names the file `path` in a keep directory. Removes the file if the record is not written.
    fn keep<Body: Kind>(&mut self, body: &Body, path: &Path) -> Result<()> {
        let outcome = if self.present().is_broken { Ok(false) } else { self.try_keep(body, path) };
        if !matches!(outcome, Ok(true)) && !self.kept.contains_key(path) {
            self.storage.drop_kept_later(path)?;
        }
        outcome.map(|_| ())
    }

    /// Removes a file in a keep directory that no record names.
    pub(crate) fn drop_unnamed(&self, path: &Path) -> Result<()> {
        self.storage.drop_kept_later(path)
    }

    fn try_keep<Body: Kind>(&mut self, body: &Body, path: &Path) -> Result<bool> {
        let bytes = match self.kept.get(path) {
            Some(_) => 0,
            None => self.storage.kept_bytes(path)?.get(),
        };
        // Count the new reference before `state` removes old epochs, because an old epoch can name the same file.
        let kept = self.kept.entry(path.to_path_buf()).or_insert(Kept { epochs: 0, bytes });
        kept.epochs += 1;
        self.bytes += bytes;
        let outcome = self.state(body, &[]);
        if outcome.is_ok() {
            self.present_mut().kept.push(path.to_path_buf());
        } else {
            self.release(path);
        }
        outcome.map(|()| true)
    }

    fn drop_until_fits(&mut self, bytes: u64) -> Result<()> {
        while self.bytes + bytes > self.bytes_max {
            if self.epochs.len() == 1 {
                let needed = ByteCount(self.bytes + bytes);
                return Err(UndoError::Full { needed, max: ByteCount(self.bytes_max) });
            }
            self.drop_oldest()?;
        }
        Ok(())
    }

    /// Appends a frame after the last complete frame.
    fn append<Body: Kind>(&mut self, body: &Body, data: &[u8]) -> Result<()> {
        if self.is_torn {
            return Err(UndoError::Torn { directory: self.storage.path() });
        }
        let frame = frame::encode(body, data);
        let at = self.present().length;
        if let Err(error) = self.file.write(at, [&frame, data]) {
            self.is_torn = self.file.truncate(at).is_err();
            return Err(error);
        }
        let length = (frame.len() + data.len()) as u64;
        self.present_mut().length += length;
        self.bytes += length;
        self.end = End::Unknown;
        Ok(())
    }

    /// Breaks the present epoch without using disk space: overwrites the header, or removes all epoch files on failure.
    fn spoil(&mut self) -> Result<()> {
        if self.file.write(0, [&[0xff; frame::HEAD_BYTES], &[]]).is_ok() {
            return Ok(());
        }
        while let Some(epoch) = self.epochs.iter().rev().find(|epoch| epoch.length > 0) {
            let ordinal = epoch.ordinal;
            self.storage.remove(&epoch_name(ordinal))?;
            for epoch in self.epochs.iter_mut().filter(|epoch| epoch.ordinal == ordinal) {
                self.bytes -= epoch.length;
                (epoch.length, epoch.is_broken) = (0, true);
            }
        }
        Ok(())
    }

    fn drop_oldest(&mut self) -> Result<()> {
        let Some(oldest) = self.epochs.front() else { return Ok(()) };
        self.storage.remove_later(&epoch_name(oldest.ordinal))?;
        let Some(oldest) = self.epochs.pop_front() else { return Ok(()) };
        self.bytes -= oldest.length;
        for path in oldest.kept {
            if self.release(&path) {
                self.storage.drop_kept_later(&path)?;
            }
        }
        Ok(())
    }

    /// Drops one reference to a file in a keep directory. Returns `true` if no reference is left.
    fn release(&mut self, path: &Path) -> bool {
        let Some(kept) = self.kept.get_mut(path) else { return false };
        kept.epochs -= 1;
        if kept.epochs > 0 {
            return false;
        }
        self.bytes -= kept.bytes;
        self.kept.remove(path);
        true
    }
}
