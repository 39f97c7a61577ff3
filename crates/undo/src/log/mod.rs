//! The log: epochs of records, each epoch the way back to one checkpoint.
//!
//! Owns: the writer, retention and bound; the records, their files and how they are read are in the modules below.
//! Invariants: a record is in the page cache before the call that wrote it returns; a write that fails leaves no torn
//! record behind, or the epoch takes no more; a file of the log is removed before the links that it names.
//! Does not: decide what to record.
//!
//! A log is a directory with a file for each epoch, numbered in the order of their beginnings. Each names the epoch
//! before it. A file without content is the next epoch, made ahead.

mod files;
pub(crate) mod journal;
pub mod keep;
pub(crate) mod reader;
pub(crate) mod record;
mod removal;
pub(crate) mod storage;
pub(crate) mod target;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use model::{ByteCount, Sequence};

use crate::error::{Result, UndoError};
use crate::key::{Attributes, FileKey, Time};
pub use files::UNWATCHED;
pub(crate) use files::epoch_name;
use files::{clear_mark, new_file};
use reader::{Entry, ReadEpoch};
use record::{AnyRecord, DATA_BYTES_MAX, Kind};
use removal::kept_of;
pub(crate) use removal::{clear, remove_leftovers};
use storage::{DiskStorage, LogFile, Storage};

/// A directory that records of the present epoch refer to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectoryId(pub u32);

/// An inode that records of the present epoch refer to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InodeId(pub u32);

/// Appends records. The caller records each name, inode and range at its first change in an epoch only.
#[derive(Debug)]
pub struct UndoLog {
    storage: Box<dyn Storage>,
    boot: String,
    bytes_max: u64,
    /// Oldest first; the last is the present one.
    epochs: VecDeque<Epoch>,
    file: Box<dyn LogFile>,
    spare: Option<Box<dyn LogFile>>,
    kept: HashMap<PathBuf, Kept>,
    bytes: u64,
    directories: u32,
    inodes: u32,
    has_ended: bool,
    /// A torn record could not be cut off the present file.
    is_torn: bool,
}

/// Names of some thousand checkpoints.
const SEQUENCES_BYTES_MAX: u64 = 64 << 10;

/// An epoch of the log.
#[derive(Debug, Default)]
struct Epoch {
    ordinal: u64,
    sequences: Vec<Sequence>,
    /// What the names of further checkpoints take in the file.
    sequences_bytes: u64,
    length: u64,
    kept: Vec<PathBuf>,
    is_empty: bool,
    is_broken: bool,
}

/// A link or a file in a keep directory.
#[derive(Debug, Default)]
struct Kept {
    epochs: u32,
    bytes: u64,
}

impl UndoLog {
    /// Begins a log in `directory` (mode 0700, created if missing); what an earlier run has left there is removed. The
    /// first epoch leads back to `start`. What going back has moved aside stays.
    pub fn create(directory: &Path, start: Sequence, bytes_max: ByteCount) -> Result<Self> {
        Self::create_on(Box::new(DiskStorage::open_or_create(directory)?), start, bytes_max)
    }

    pub(crate) fn create_on(
        storage: Box<dyn Storage>,
        start: Sequence,
        bytes_max: ByteCount,
    ) -> Result<Self> {
        let newest = clear(&*storage)?;
        let epoch = Epoch { ordinal: newest + 1, ..Epoch::default() };
        let file = new_file(&*storage, epoch.ordinal)?;
        let boot = storage.boot()?;
        let mut log = Self::on(storage, boot, bytes_max, file);
        log.begin(epoch.ordinal, 0, start)?;
        Ok(log)
    }

    /// Goes on with the log in `directory`: after going back, or when the program that wrote it has ended. Links and
    /// copies that no record names are removed. What the subject has changed unwatched meanwhile is for the caller to
    /// report: see [`UNWATCHED`].
    ///
    /// # Errors
    ///
    /// When there is no epoch, a file cannot be used, or going back was interrupted.
    pub fn open(directory: &Path, bytes_max: ByteCount) -> Result<Self> {
        Self::open_on(Box::new(DiskStorage::open(directory)?), bytes_max)
    }

    pub(crate) fn open_on(storage: Box<dyn Storage>, bytes_max: ByteCount) -> Result<Self> {
        let read = reader::read(&*storage)?;
        let Some(present) = read.epochs.last() else {
            return Err(UndoError::NoLog { directory: storage.path() });
        };
        if let Some(begun) = journal::read(&*storage, &read)? {
            return Err(UndoError::HalfBack {
                to: begun.to,
                why: "and nothing can be recorded before".to_owned(),
            });
        }
        remove_leftovers(&*storage, &read)?;
        let boot = storage.boot()?;
        let file = storage.open(&epoch_name(present.ordinal))?;
        if present.is_torn {
            file.truncate(present.length)?;
        }
        let why = present.broken_at(&boot);
        let mut log = Self::on(storage, boot, bytes_max, file);
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

    /// Counts an epoch that was read.
    fn take_over(&mut self, read: &ReadEpoch) -> Result<()> {
        let is_state = |entry: &Entry| {
            !matches!(entry.record, AnyRecord::Exact(_) | AnyRecord::Ended(_) | AnyRecord::Alias(_))
        };
        let mut epoch = Epoch {
            ordinal: read.ordinal,
            sequences: read.sequences.clone(),
            sequences_bytes: 0,
            length: read.length,
            kept: kept_of(read).map(Path::to_path_buf).collect(),
            is_empty: !read.records.iter().any(is_state),
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
        (self.directories, self.inodes) = (0, 0);
        for entry in &read.records {
            match &entry.record {
                AnyRecord::Directory(directory) => self.directories = directory.id + 1,
                AnyRecord::Inode(inode) => self.inodes = inode.id + 1,
                _ => {}
            }
        }
        self.epochs.push_back(epoch);
        Ok(())
    }

    fn on(storage: Box<dyn Storage>, boot: String, bytes_max: ByteCount, file: Box<dyn LogFile>) -> Self {
        Self {
            storage,
            boot,
            bytes_max: bytes_max.get(),
            epochs: VecDeque::new(),
            file,
            spare: None,
            kept: HashMap::new(),
            bytes: 0,
            directories: 0,
            inodes: 0,
            has_ended: false,
            is_torn: false,
        }
    }

    /// The state of files now is that of a checkpoint. Begins a new epoch, unless the present one is empty: then the
    /// state is also that of the earlier one. Ids of directories and inodes are void afterwards. `true` when a new
    /// epoch began. Called inside the pause: makes no file if `prepare` has made the next one.
    pub fn boundary(&mut self, sequence: Sequence) -> Result<bool> {
        let present = self.present();
        if present.is_empty && !present.is_broken && !self.is_long() {
            self.same(sequence)?;
            return Ok(false);
        }
        let after = self.present().ordinal;
        let next = match self.spare.take() {
            Some(spare) => spare,
            None => new_file(&*self.storage, after + 1)?,
        };
        let previous = std::mem::replace(&mut self.file, next);
        self.begin(after + 1, after, sequence).inspect_err(|_| {
            let unused = std::mem::replace(&mut self.file, previous);
            // An incomplete header counts as no epoch, so that the file still serves as the next one.
            self.spare = unused.truncate(0).is_ok().then_some(unused);
        })?;
        Ok(true)
    }

    /// The state of files now is also that of a further checkpoint: what was recorded in this epoch is what its beginning
    /// itself asked for, and nothing has changed since.
    pub fn same(&mut self, sequence: Sequence) -> Result<()> {
        let before = self.bytes;
        self.append(&record::Exact { sequence: sequence.get() }, &[])?;
        let written = self.bytes - before;
        let present = self.present_mut();
        present.sequences_bytes += written;
        present.sequences.push(sequence);
        Ok(())
    }

    /// Creates the file of the next epoch ahead. Called outside the pause.
    pub fn prepare(&mut self) -> Result<()> {
        if self.spare.is_none() {
            self.spare = Some(new_file(&*self.storage, self.present().ordinal + 1)?);
        }
        Ok(())
    }

    /// A directory with names that are about to change: its attributes, and its path for people.
    pub fn directory(&mut self, key: &FileKey, attributes: &Attributes, path: &Path) -> Result<DirectoryId> {
        let (id, path) = (self.directories, record::bytes_of(path));
        self.state(&record::Directory { id, key: key.into(), attributes: attributes.into(), path }, &[])?;
        self.directories += 1;
        Ok(DirectoryId(id))
    }

    /// An inode about to be changed, or to lose a name: attributes (size included) as they were when the epoch began.
    pub fn inode(&mut self, key: &FileKey, attributes: &Attributes, path: &Path) -> Result<InodeId> {
        let (id, path) = (self.inodes, record::bytes_of(path));
        self.state(&record::Inode { id, key: key.into(), attributes: attributes.into(), path }, &[])?;
        self.inodes += 1;
        Ok(InodeId(id))
    }

    /// What a name led to when the epoch began.
    pub fn name(&mut self, directory: DirectoryId, name: &OsStr, before: Option<InodeId>) -> Result<()> {
        let before = before.map(|inode| inode.0);
        self.state(&record::Name { directory: directory.0, name: name.as_bytes().to_vec(), before }, &[])
    }

    /// Old content of a range. Ranges beyond the recorded size are not given. The whole content of [`Self::whole_in`]
    /// in the same epoch is applied before ranges.
    pub fn range(&mut self, inode: InodeId, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut offset = offset;
        for data in bytes.chunks(DATA_BYTES_MAX) {
            self.state(&record::Range { inode: inode.0, offset }, data)?;
            offset += data.len() as u64;
        }
        Ok(())
    }

    /// A range that was a hole, or zeros.
    pub fn hole(&mut self, inode: InodeId, offset: u64, length: ByteCount) -> Result<()> {
        self.state(&record::Hole { inode: inode.0, offset, length: length.get() }, &[])
    }

    /// The whole old content is in another file (a reflink or a copy) in a keep directory. The log removes that file
    /// with the epoch, or at once if this fails.
    pub fn whole_in(&mut self, inode: InodeId, file: &Path) -> Result<()> {
        self.keep(&record::Whole { inode: inode.0, file: record::bytes_of(file) }, file)
    }

    /// The inode has a further name, a hard link in a keep directory, so that it outlives the names it is about to
    /// lose. The log removes that link with the epoch, or at once if this fails.
    pub fn linked(&mut self, inode: InodeId, link: &Path) -> Result<()> {
        self.keep(&record::Linked { inode: inode.0, link: record::bytes_of(link) }, link)
    }

    /// A file that can be changed without a trace from now on: the restore has to compare it.
    pub fn uncovered(&mut self, device: u64, inode: u64, path: &Path) -> Result<()> {
        self.state(&record::Uncovered { device, inode, path: record::bytes_of(path) }, &[])
    }

    /// The way back through this epoch is lost. Later records of it are not written.
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

    /// The subject has ended: a later change is one of another program. Any later record voids it.
    pub fn ended(&mut self, time: Time) -> Result<()> {
        self.append(&record::Ended { time: time.into() }, &[])?;
        self.has_ended = true;
        Ok(())
    }

    /// Whether so many checkpoints are those of the present epoch that another one should begin: its file goes when none
    /// of them is kept any more, and would grow for ever while no file changes.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.present().sequences_bytes > SEQUENCES_BYTES_MAX
    }

    /// Forgets what only leads to checkpoints that are neither among these, in rising order, nor newer.
    pub fn retain(&mut self, kept: &[Sequence]) -> Result<()> {
        let (Some(oldest), Some(newest)) = (kept.first(), kept.last()) else { return Ok(()) };
        self.forget_before(*oldest)?;
        for epoch in &mut self.epochs {
            epoch.sequences.retain(|one| one > newest || kept.binary_search(one).is_ok());
        }
        Ok(())
    }

    /// Forgets epochs that only lead to checkpoints before `oldest`. Does nothing after `ended`: to remove a link
    /// changes the ctime of its inode, which going back would take for a change by another program.
    pub fn forget_before(&mut self, oldest: Sequence) -> Result<()> {
        let is_before = |epoch: &Epoch| epoch.sequences.iter().all(|sequence| *sequence < oldest);
        while !self.has_ended && self.epochs.len() > 1 && self.epochs.front().is_some_and(is_before) {
            self.drop_oldest()?;
        }
        Ok(())
    }

    /// Checkpoints that the log leads back to, in rising order.
    #[must_use]
    pub fn sequences(&self) -> Vec<Sequence> {
        let whole = self.epochs.iter().rev().take_while(|epoch| !epoch.is_broken);
        let mut sequences: Vec<_> = whole.flat_map(|epoch| epoch.sequences.iter().copied()).collect();
        sequences.sort_unstable();
        sequences
    }

    /// Bytes of all epochs, with those of files in keep directories.
    pub fn bytes(&self) -> ByteCount {
        ByteCount(self.bytes)
    }

    fn present(&self) -> &Epoch {
        self.epochs.back().expect("a log has a present epoch from its creation on")
    }

    fn present_mut(&mut self) -> &mut Epoch {
        self.epochs.back_mut().expect("a log has a present epoch from its creation on")
    }

    /// Writes the header of a new epoch, which makes `file` the present one.
    fn begin(&mut self, ordinal: u64, after: u64, sequence: Sequence) -> Result<()> {
        let header =
            record::Header { boot: self.boot.clone(), ordinal, after, sequences: vec![sequence.get()] };
        let frame = record::frame(&header, &[]);
        self.file.write(0, [&frame, &[]])?;
        let length = frame.len() as u64;
        let sequences = vec![sequence];
        self.epochs.push_back(Epoch { ordinal, sequences, length, is_empty: true, ..Epoch::default() });
        self.bytes += length;
        (self.directories, self.inodes) = (0, 0);
        (self.has_ended, self.is_torn) = (false, false);
        Ok(())
    }

    /// Appends a record of the state of files, within the bound.
    fn state<Body: Kind>(&mut self, body: &Body, data: &[u8]) -> Result<()> {
        if self.present().is_broken {
            return Ok(());
        }
        self.make_room((body.encoded_len() + data.len()) as u64)?;
        self.append(body, data)?;
        self.present_mut().is_empty = false;
        self.has_ended = false;
        Ok(())
    }

    /// Appends a record that names something in a keep directory, which is removed if that fails.
    fn keep<Body: Kind>(&mut self, body: &Body, path: &Path) -> Result<()> {
        let outcome = if self.present().is_broken { Ok(false) } else { self.try_keep(body, path) };
        if !matches!(outcome, Ok(true)) && !self.kept.contains_key(path) {
            self.storage.drop_kept(path)?;
        }
        outcome.map(|_| ())
    }

    fn try_keep<Body: Kind>(&mut self, body: &Body, path: &Path) -> Result<bool> {
        let bytes = match self.kept.get(path) {
            Some(_) => 0,
            None => self.storage.kept_bytes(path)?.get(),
        };
        // Counted before there is room for it: dropping an epoch must not remove what this one is about to name.
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

    fn make_room(&mut self, bytes: u64) -> Result<()> {
        while self.bytes + bytes > self.bytes_max {
            if self.epochs.len() == 1 {
                let needed = ByteCount(self.bytes + bytes);
                return Err(UndoError::Full { needed, max: ByteCount(self.bytes_max) });
            }
            self.drop_oldest()?;
        }
        Ok(())
    }

    /// Appends a frame behind the last whole one.
    fn append<Body: Kind>(&mut self, body: &Body, data: &[u8]) -> Result<()> {
        if self.is_torn {
            return Err(UndoError::Torn { directory: self.storage.path() });
        }
        let frame = record::frame(body, data);
        let at = self.present().length;
        if let Err(error) = self.file.write(at, [&frame, data]) {
            self.is_torn = self.file.truncate(at).is_err();
            return Err(error);
        }
        let length = (frame.len() + data.len()) as u64;
        self.present_mut().length += length;
        self.bytes += length;
        Ok(())
    }

    /// Breaks the present epoch without appending: in place, which takes no room, or by leaving no way back at all.
    fn spoil(&mut self) -> Result<()> {
        if self.file.write(0, [&[0xff; record::HEAD_BYTES], &[]]).is_ok() {
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
        self.storage.remove(&epoch_name(oldest.ordinal))?;
        let Some(oldest) = self.epochs.pop_front() else { return Ok(()) };
        self.bytes -= oldest.length;
        for path in oldest.kept {
            if self.release(&path) {
                self.storage.drop_kept(&path)?;
            }
        }
        Ok(())
    }

    /// Takes one reference away; `true` if it was the last.
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
