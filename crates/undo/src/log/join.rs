//! Joining epochs whose checkpoints are no longer retained (docs/design/0058).
//!
//! An epoch is the time between two successive exact checkpoints, to which files can be rolled back. The log has one file
//! for each epoch. A rollback to a checkpoint needs all later epochs. A program that changes the same files all the time
//! repeats their content in each epoch. If nothing can be rolled back to the checkpoint between two epochs, of all content
//! of a range only the oldest is needed.
//!
//! Owns: the choice of epochs, the content of the joined epoch, and its exchange for the epochs.
//! Invariants: a rollback has the same result with the joined epoch as with the epochs. One rename exchanges them, so that
//! the log is complete at every moment. The newest two epochs are never joined, because records can be added to them.
//! Does not: decide which checkpoints are retained; start threads.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{Address, AddressRange, RangeSet, Sequence};

use super::reader::{self, End, Entry, ReadEpoch};
use super::record::{self, AnyRecord, Kind};
use super::storage::{LogFile, Storage};
use super::{Epoch, UndoLog, epoch_name};
use crate::error::Result;
use crate::key::FileKey;
use crate::rights::Aspects;

/// Epochs are joined if the later ones have as many bytes as the first one, and this many more. So at most as many bytes
/// are copied as were recorded.
const JOIN_BYTES_MIN: u64 = 4 << 20;
/// Epochs are also joined if they are this many, because a rollback opens the file of each epoch.
const JOIN_EPOCHS_MIN: usize = 512;
/// The maximum of `Joining::failures`.
const FAILURES_MAX: u32 = 16;
/// The number of newest epochs to which records can be added: the present epoch, and the epoch whose last records a pause
/// holds back.
const OPEN_EPOCHS: usize = 2;
/// The suffix of a joined epoch that is not published.
const SUFFIX: &str = ".joined";
/// The number of bytes that one write of a joined epoch has at least.
const WRITE_BYTES: usize = 1 << 20;

/// When epochs are joined.
#[derive(Debug)]
pub(super) struct Joining {
    /// Identifies the log: a log that was opened again knows nothing of the epochs that are being joined.
    log: Arc<()>,
    /// `JOIN_BYTES_MIN` and `JOIN_EPOCHS_MIN`.
    bytes_min: u64,
    epochs_min: usize,
    /// The number of attempts that have failed since the last success, at most `FAILURES_MAX`. Each doubles the minimums, so
    /// that damaged epochs are not read all the time.
    failures: u32,
}

/// Epochs that can be joined.
#[derive(Debug)]
pub struct Joint {
    storage: Arc<dyn Storage>,
    log: Arc<()>,
    boot: String,
    /// The ordinal numbers of the epochs, in rising order.
    ordinals: Vec<u64>,
    /// The checkpoints to which the first of the epochs leads.
    sequences: Vec<Sequence>,
}

/// A joined epoch that is written, and not yet published.
#[derive(Debug)]
pub struct Joined {
    storage: Arc<dyn Storage>,
    log: Arc<()>,
    ordinals: Vec<u64>,
    /// The name of the file.
    name: String,
    length: u64,
    /// The files in keep directories that the records name.
    kept: Vec<PathBuf>,
}

impl Default for Joining {
    fn default() -> Self {
        Self { log: Arc::default(), bytes_min: JOIN_BYTES_MIN, epochs_min: JOIN_EPOCHS_MIN, failures: 0 }
    }
}

impl UndoLog {
    /// Returns epochs that are worth joining, if there are any.
    #[must_use]
    pub fn to_join(&self) -> Option<Joint> {
        if self.end != End::Unknown || self.storage.is_short() {
            return None;
        }
        let (later, range) = self.joinable().max_by_key(|(later, _)| *later)?;
        let epochs: Vec<&Epoch> = self.epochs.range(range).collect();
        let first = epochs.first()?.length;
        let Joining { bytes_min, epochs_min, failures, .. } = self.joining;
        let is_much = later >= first + (bytes_min << failures) || epochs.len() > epochs_min << failures;
        let fits = self.bytes + first + later <= self.bytes_max;
        (is_much && fits).then(|| Joint {
            storage: Arc::clone(&self.storage),
            log: Arc::clone(&self.joining.log),
            boot: self.boot.clone(),
            ordinals: epochs.iter().map(|epoch| epoch.ordinal).collect(),
            sequences: epochs[0].sequences.clone(),
        })
    }

    /// Returns ranges of at least two epochs, with the bytes of all but the first of them. To the checkpoints of these later epochs, nothing
    /// can be rolled back.
    fn joinable(&self) -> impl Iterator<Item = (u64, Range<usize>)> {
        let old = self.epochs.len().saturating_sub(OPEN_EPOCHS);
        let mut next = 0;
        let ranges = std::iter::from_fn(move || {
            let first = (next..old).find(|index| !self.epochs[*index].is_broken)?;
            let is_later = |index: &usize| {
                let epoch = &self.epochs[*index];
                epoch.sequences.is_empty() && !epoch.is_broken
            };
            next = (first + 1..old).find(|index| !is_later(index)).unwrap_or(old);
            Some((self.epochs.range(first + 1..next).map(|epoch| epoch.length).sum(), first..next))
        });
        ranges.filter(|(_, range)| range.len() > 1)
    }

    /// Reports whether the epochs of a joined epoch are still those of this log.
    #[must_use]
    pub fn can_join(&self, joined: &Joined) -> bool {
        Arc::ptr_eq(&self.joining.log, &joined.log)
            && self.end == End::Unknown
            && joined.ordinals.iter().all(|ordinal| {
                self.epochs.binary_search_by_key(ordinal, |epoch| epoch.ordinal).is_ok()
            })
    }

    /// Forgets the epochs of a joined epoch that was published. Since [`Self::can_join`], some or all of them may have been
    /// dropped.
    ///
    /// # Errors
    ///
    /// A file that is no longer needed cannot be removed.
    pub fn joined(&mut self, joined: Joined) -> Result<()> {
        self.joining.failures = 0;
        let Some(last) = joined.ordinals.last().copied() else { return Ok(()) };
        let is_joined = |epoch: &Epoch| joined.ordinals.binary_search(&epoch.ordinal).is_ok();
        let Some(first) = self.epochs.iter().position(is_joined) else {
            return self.storage.remove_later(&epoch_name(last));
        };
        let count = self.epochs.iter().skip(first).take_while(|epoch| is_joined(epoch)).count();
        let mut kept = joined.kept;
        kept.retain(|path| {
            let known = self.kept.get_mut(path);
            known.is_some_and(|known| {
                known.epochs += 1;
                true
            })
        });
        let epochs: Vec<Epoch> = self.epochs.drain(first..first + count).collect();
        let mut sequences = Vec::new();
        for epoch in epochs {
            sequences.extend(epoch.sequences);
            self.bytes -= epoch.length;
            if epoch.ordinal != last {
                self.storage.remove_later(&epoch_name(epoch.ordinal))?;
            }
            for path in epoch.kept {
                if self.release(&path) {
                    self.storage.drop_kept_later(&path)?;
                }
            }
        }
        self.bytes += joined.length;
        let epoch = Epoch { ordinal: last, sequences, length: joined.length, kept, ..Epoch::default() };
        self.epochs.insert(first, epoch);
        Ok(())
    }

    /// Makes all epochs worth joining.
    #[cfg(test)]
    pub(crate) fn join_always(&mut self) {
        self.joining.epochs_min = 1;
    }

    /// Joins epochs, as the watch does. Returns whether epochs were joined.
    #[cfg(test)]
    pub(crate) fn join(&mut self) -> Result<bool> {
        let Some(joint) = self.to_join() else { return Ok(false) };
        let Some(joined) = joint.write()? else { return Ok(false) };
        joined.publish()?;
        self.joined(joined).map(|()| true)
    }

    /// Notes that epochs could not be joined. The next attempt is made later.
    pub fn join_failed(&mut self) {
        self.joining.failures = (self.joining.failures + 1).min(FAILURES_MAX);
    }
}

/// Removes joined epochs that were never published.
pub(super) fn remove_unpublished(storage: &dyn Storage) -> Result<()> {
    storage.names()?.iter().filter(|name| name.ends_with(SUFFIX)).try_for_each(|name| storage.remove(name))
}

impl Joint {
    /// Writes the joined epoch. The caller needs no access to the log. Returns `None` if a record is missing or damaged.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written.
    pub fn write(self) -> Result<Option<Joined>> {
        // Another thread can still be joining epochs of the log that this log has replaced.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let last = self.ordinals.last().copied().unwrap_or_default();
        let name = format!("{last:08}-{}{SUFFIX}", NEXT.fetch_add(1, Ordering::Relaxed));
        let written = self.write_to(&name);
        let Ok(Some((length, kept))) = written else {
            self.storage.remove(&name)?;
            return written.map(|_| None);
        };
        let Self { storage, log, ordinals, .. } = self;
        Ok(Some(Joined { storage, log, ordinals, name, length, kept }))
    }

    fn write_to(&self, name: &str) -> Result<Option<(u64, Vec<PathBuf>)>> {
        self.storage.remove(name)?;
        let mut joined = Writer::new(self.storage.create_plain(name)?);
        for ordinal in &self.ordinals {
            let file = self.storage.open(&epoch_name(*ordinal))?;
            let Some(epoch) = reader::read_epoch(&*file, *ordinal, false, true)? else { return Ok(None) };
            if epoch.broken.is_some() || epoch.boot != self.boot {
                return Ok(None);
            }
            if *ordinal == self.ordinals[0] {
                joined.append(&self.header(&epoch), &[])?;
            }
            if !joined.add(&*file, &epoch, &self.sequences)? {
                return Ok(None);
            }
        }
        joined.finish().map(Some)
    }

    /// Returns the header of the joined epoch: the checkpoints and the predecessor of the first epoch, and the number of the
    /// last one, which its successor names.
    fn header(&self, first: &ReadEpoch) -> record::Header {
        record::Header {
            boot: self.boot.clone(),
            ordinal: self.ordinals.last().copied().unwrap_or_default(),
            after: first.after,
            sequences: self.sequences.iter().map(|sequence| sequence.get()).collect(),
        }
    }
}

impl Joined {
    /// Replaces the last of the epochs. The other epochs are then no longer part of the log. The caller ensures that no
    /// other thread reads the log or opens it again.
    ///
    /// # Errors
    ///
    /// The file cannot be renamed. The log is unchanged.
    pub fn publish(&self) -> Result<()> {
        let last = self.ordinals.last().copied().unwrap_or_default();
        self.storage.rename(&self.name, &epoch_name(last))
    }

    /// Removes the joined epoch, which was not published.
    ///
    /// # Errors
    ///
    /// The file cannot be removed.
    pub fn discard(self) -> Result<()> {
        self.storage.remove(&self.name)
    }
}

/// Writes the records of several epochs to one file, oldest epoch first, without the records that change nothing.
struct Writer {
    file: Box<dyn LogFile>,
    /// The length of the file, without `pending`.
    length: u64,
    pending: Vec<u8>,
    kept: Vec<PathBuf>,
    directories: HashMap<FileKey, u32>,
    inodes: HashMap<FileKey, Inode>,
    /// The rights, encoded without an id.
    rights: HashMap<Vec<u8>, u32>,
    /// The recorded names: directory, name and rights.
    names: HashSet<(u32, Vec<u8>, u32)>,
    uncovered: HashSet<(u64, u64)>,
}

/// What the joined epoch states about an inode.
struct Inode {
    id: u32,
    /// The recorded aspects for each rights id.
    touched: HashMap<u32, Aspects>,
    /// Whether the whole content is recorded.
    is_whole: bool,
    /// The ranges of content that earlier epochs have recorded.
    content: RangeSet,
    /// The ranges of content that this epoch has recorded.
    added: Vec<AddressRange>,
}

/// Maps ids in the records of one epoch to those of the joined epoch. Inodes are mapped to their keys.
#[derive(Default)]
struct Ids {
    directories: HashMap<u32, u32>,
    inodes: HashMap<u32, FileKey>,
    rights: HashMap<u32, u32>,
}

impl Ids {
    fn rights(&self, id: u32) -> Option<u32> {
        if id == 0 { Some(0) } else { self.rights.get(&id).copied() }
    }
}

impl Writer {
    fn new(file: Box<dyn LogFile>) -> Self {
        Self {
            file,
            length: 0,
            pending: Vec::new(),
            kept: Vec::new(),
            directories: HashMap::new(),
            inodes: HashMap::new(),
            rights: HashMap::new(),
            names: HashSet::new(),
            uncovered: HashSet::new(),
        }
    }

    /// Adds the records of an epoch. `sequences` are the checkpoints of the joined epoch. Returns `false` if the epoch is
    /// malformed.
    fn add(&mut self, from: &dyn LogFile, epoch: &ReadEpoch, sequences: &[Sequence]) -> Result<bool> {
        let mut ids = Ids::default();
        for entry in &epoch.records {
            if self.record(from, entry, &mut ids, sequences)?.is_none() {
                return Ok(false);
            }
        }
        for inode in self.inodes.values_mut().filter(|inode| !inode.added.is_empty()) {
            inode.content.extend(inode.added.drain(..));
        }
        Ok(true)
    }

    /// Adds a record. Returns `None` if the record is malformed.
    fn record(
        &mut self,
        from: &dyn LogFile,
        entry: &Entry,
        ids: &mut Ids,
        sequences: &[Sequence],
    ) -> Result<Option<()>> {
        match &entry.record {
            AnyRecord::Rights(rights) => {
                let unnamed = prost::Message::encode_to_vec(&record::Rights { id: 0, ..rights.clone() });
                let new = self.rights.len() as u32 + 1;
                let id = *self.rights.entry(unnamed).or_insert(new);
                ids.rights.insert(rights.id, id);
                if id == new {
                    self.append(&record::Rights { id, ..rights.clone() }, &[])?;
                }
            }
            AnyRecord::Directory(directory) => {
                let new = self.directories.len() as u32;
                let id = *self.directories.entry(directory.key.clone().into()).or_insert(new);
                ids.directories.insert(directory.id, id);
                if id == new {
                    self.append(&record::Directory { id, ..directory.clone() }, &[])?;
                }
            }
            AnyRecord::Inode(inode) => {
                let Some(rights) = ids.rights(inode.rights) else { return Ok(None) };
                let key = FileKey::from(inode.key.clone());
                ids.inodes.insert(inode.id, key.clone());
                let aspects = inode.aspects.map_or(Aspects::ALL, Aspects);
                if let Some(id) = self.touch(key, rights, aspects) {
                    self.append(&record::Inode { id, rights, ..inode.clone() }, &[])?;
                }
            }
            AnyRecord::Touched(touched) => {
                let (Some(key), Some(rights)) = (ids.inodes.get(&touched.inode), ids.rights(touched.rights))
                else {
                    return Ok(None);
                };
                if let Some(inode) = self.touch(key.clone(), rights, Aspects(touched.aspects)) {
                    self.append(&record::Touched { inode, rights, ..touched.clone() }, &[])?;
                }
            }
            AnyRecord::Name(name) => {
                let before = name.before.map(|id| self.inode(ids, id).map(|inode| inode.id));
                let directory = ids.directories.get(&name.directory).copied();
                let (Some(directory), Some(rights)) = (directory, ids.rights(name.rights)) else {
                    return Ok(None);
                };
                if before == Some(None) {
                    return Ok(None);
                }
                if self.names.insert((directory, name.name.clone(), rights)) {
                    let before = before.flatten();
                    self.append(&record::Name { directory, before, rights, ..name.clone() }, &[])?;
                }
            }
            AnyRecord::Range(range) => {
                let Some(inode) = self.content(ids, range.inode, range.offset, entry.data_length) else {
                    return Ok(None);
                };
                if let Some(inode) = inode {
                    let mut data = vec![0; entry.data_length as usize];
                    if from.read(entry.data_offset, &mut data)? != data.len() {
                        return Ok(None);
                    }
                    self.append(&record::Range { inode, ..range.clone() }, &data)?;
                }
            }
            AnyRecord::Hole(hole) => {
                let Some(inode) = self.content(ids, hole.inode, hole.offset, hole.length) else {
                    return Ok(None);
                };
                if let Some(inode) = inode {
                    self.append(&record::Hole { inode, ..hole.clone() }, &[])?;
                }
            }
            AnyRecord::Whole(whole) => {
                let Some(inode) = self.inode(ids, whole.inode) else { return Ok(None) };
                let id = inode.id;
                if !std::mem::replace(&mut inode.is_whole, true) {
                    self.kept.push(record::path_of(&whole.file).to_path_buf());
                    self.append(&record::Whole { inode: id, ..whole.clone() }, &[])?;
                }
            }
            AnyRecord::Linked(linked) => {
                let Some(inode) = self.inode(ids, linked.inode).map(|inode| inode.id) else {
                    return Ok(None);
                };
                self.kept.push(record::path_of(&linked.link).to_path_buf());
                self.append(&record::Linked { inode, ..linked.clone() }, &[])?;
            }
            AnyRecord::Uncovered(file) => {
                if self.uncovered.insert((file.device, file.inode)) {
                    self.append(file, &[])?;
                }
            }
            // A checkpoint can be retracted, and be exact at a later pause.
            AnyRecord::Retracted(retracted) if !sequences.contains(&Sequence(retracted.sequence)) => {
                self.append(retracted, &[])?;
            }
            AnyRecord::Alias(alias) => self.append(alias, &[])?,
            // Only the newest epoch has a copy that is updated, and an end. The header lists the checkpoints.
            AnyRecord::Shadow(_)
            | AnyRecord::Exact(_)
            | AnyRecord::Retracted(_)
            | AnyRecord::Ended(_)
            | AnyRecord::Idle(_)
            | AnyRecord::Running(_) => {}
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    fn inode(&mut self, ids: &Ids, id: u32) -> Option<&mut Inode> {
        self.inodes.get_mut(ids.inodes.get(&id)?)
    }

    /// Notes a change of aspects of an inode. Returns the id of the inode if a record is needed.
    fn touch(&mut self, key: FileKey, rights: u32, aspects: Aspects) -> Option<u32> {
        let id = self.inodes.len() as u32;
        let inode = self.inodes.entry(key).or_insert_with(|| Inode {
            id,
            touched: HashMap::new(),
            is_whole: false,
            content: RangeSet::new(),
            added: Vec::new(),
        });
        let is_known = inode.touched.get(&rights).is_some_and(|known| aspects.without(*known).is_none());
        *inode.touched.entry(rights).or_insert(Aspects::NONE) |= aspects;
        (!is_known).then_some(inode.id)
    }

    /// Notes a range of the content of an inode. Returns the id of the inode if a record is needed, and `None` if the inode
    /// is unknown.
    fn content(&mut self, ids: &Ids, id: u32, offset: u64, length: u64) -> Option<Option<u32>> {
        let inode = self.inode(ids, id)?;
        let range = AddressRange::new(Address(offset), Address(offset.saturating_add(length)));
        if inode.is_whole || inode.content.gaps(range).next().is_none() {
            return Some(None);
        }
        inode.added.push(range);
        Some(Some(inode.id))
    }

    fn append<Body: Kind>(&mut self, body: &Body, data: &[u8]) -> Result<()> {
        self.pending.extend(record::frame(body, data));
        self.pending.extend(data);
        if self.pending.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write(self.length, [&self.pending, &[]])?;
        self.length += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Returns the length of the file, and the files in keep directories that the records name.
    fn finish(mut self) -> Result<(u64, Vec<PathBuf>)> {
        self.flush()?;
        Ok((self.length, self.kept))
    }
}

#[cfg(test)]
mod tests;
