//! Writes the records of several epochs to the file of a joined epoch.
//!
//! Owns: which records are left out, and the ids of the others.
//! Invariants: the order of the records stays, so that the oldest record of a name, of an aspect or of a range is first.
//! Does not: choose the epochs, or publish the file.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use model::{Address, AddressRange, RangeSet, Sequence};

use crate::error::Result;
use crate::key::FileKey;
use crate::log::frame;
use crate::log::reader::{Entry, ReadEpoch};
use crate::log::record::{self, AnyRecord, Kind};
use crate::log::storage::LogFile;
use crate::rights::Aspects;

/// The number of bytes that one write has at least, except for the last one.
const WRITE_BYTES: usize = 1 << 20;

/// Writes the records of several epochs to one file, oldest epoch first, without the records that change nothing.
pub(super) struct Writer {
    file: Box<dyn LogFile>,
    /// The length of the file, without `pending`.
    length: u64,
    pending: Vec<u8>,
    /// Inodes whose records are left out.
    young: HashSet<FileKey>,
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

/// Maps ids in the records of one epoch to those of the joined epoch, and inodes to their keys. Without a value, the inode
/// or directory is left out.
#[derive(Default)]
struct Ids {
    directories: HashMap<u32, Option<u32>>,
    inodes: HashMap<u32, Option<FileKey>>,
    rights: HashMap<u32, u32>,
}

/// A record refers to an id that no record of its epoch has.
struct Malformed;

type Outcome<Value> = std::result::Result<Value, Malformed>;

impl Ids {
    fn rights(&self, id: u32) -> Outcome<u32> {
        if id == 0 { Ok(0) } else { self.rights.get(&id).copied().ok_or(Malformed) }
    }

    fn directory(&self, id: u32) -> Outcome<Option<u32>> {
        self.directories.get(&id).copied().ok_or(Malformed)
    }

    fn key(&self, id: u32) -> Outcome<Option<&FileKey>> {
        self.inodes.get(&id).map(Option::as_ref).ok_or(Malformed)
    }
}

/// What a record becomes in the joined epoch.
enum Kept {
    Nothing,
    Record(Vec<u8>),
    /// A range, whose data follows.
    Range(record::Range),
}

impl Kept {
    fn record<Body: Kind>(body: &Body) -> Self {
        Self::Record(frame::encode(body, &[]))
    }

    fn record_if<Body: Kind>(is_kept: bool, body: impl FnOnce() -> Body) -> Self {
        if is_kept { Self::record(&body()) } else { Self::Nothing }
    }
}

impl Writer {
    pub(super) fn new(file: Box<dyn LogFile>, young: HashSet<FileKey>) -> Self {
        Self {
            file,
            length: 0,
            pending: Vec::new(),
            young,
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
    pub(super) fn add(
        &mut self,
        from: &dyn LogFile,
        epoch: &ReadEpoch,
        sequences: &[Sequence],
    ) -> Result<bool> {
        let mut ids = Ids::default();
        for entry in &epoch.records {
            match self.kept(entry, &mut ids, sequences) {
                Ok(Kept::Nothing) => {}
                Ok(Kept::Record(frame)) => self.write(&frame, &[])?,
                Ok(Kept::Range(range)) => {
                    let mut data = vec![0; entry.data_length as usize];
                    if from.read(entry.data_offset, &mut data)? != data.len() {
                        return Ok(false);
                    }
                    self.append(&range, &data)?;
                }
                Err(Malformed) => return Ok(false),
            }
        }
        for inode in self.inodes.values_mut().filter(|inode| !inode.added.is_empty()) {
            inode.content.extend(inode.added.drain(..));
        }
        Ok(true)
    }

    /// Returns what is kept of a record.
    fn kept(&mut self, entry: &Entry, ids: &mut Ids, sequences: &[Sequence]) -> Outcome<Kept> {
        Ok(match &entry.record {
            AnyRecord::Rights(_)
            | AnyRecord::Directory(_)
            | AnyRecord::Inode(_)
            | AnyRecord::Touched(_)
            | AnyRecord::Name(_) => self.kept_state(&entry.record, ids)?,
            AnyRecord::Range(_) | AnyRecord::Hole(_) | AnyRecord::Whole(_) | AnyRecord::Linked(_) => {
                self.kept_content(entry, ids)?
            }
            AnyRecord::Uncovered(file) if self.uncovered.insert((file.device, file.inode)) => {
                Kept::record(file)
            }
            // A checkpoint can be retracted, and be exact at a later pause.
            AnyRecord::Retracted(retracted) if !sequences.contains(&Sequence(retracted.sequence)) => {
                Kept::record(retracted)
            }
            AnyRecord::Alias(alias) => Kept::record(alias),
            // Only the newest epoch has a copy that is updated, and an end. The header lists the checkpoints.
            AnyRecord::Uncovered(_)
            | AnyRecord::Shadow(_)
            | AnyRecord::Exact(_)
            | AnyRecord::Retracted(_)
            | AnyRecord::Ended(_)
            | AnyRecord::Idle(_)
            | AnyRecord::Running(_) => Kept::Nothing,
            _ => return Err(Malformed),
        })
    }

    /// Returns what is kept of a record of a name or of attributes.
    fn kept_state(&mut self, record: &AnyRecord, ids: &mut Ids) -> Outcome<Kept> {
        Ok(match record {
            AnyRecord::Rights(rights) => {
                let unnamed = prost::Message::encode_to_vec(&record::Rights { id: 0, ..rights.clone() });
                let new = self.rights.len() as u32 + 1;
                let id = *self.rights.entry(unnamed).or_insert(new);
                ids.rights.insert(rights.id, id);
                Kept::record_if(id == new, || record::Rights { id, ..rights.clone() })
            }
            AnyRecord::Directory(directory) => {
                let id = self.directory(directory.key.clone().into());
                ids.directories.insert(directory.id, id.map(|(id, _)| id));
                let Some((id, is_new)) = id else { return Ok(Kept::Nothing) };
                Kept::record_if(is_new, || record::Directory { id, ..directory.clone() })
            }
            AnyRecord::Inode(inode) => {
                let rights = ids.rights(inode.rights)?;
                let key = Some(inode.key.clone().into()).filter(|key| !self.young.contains(key));
                ids.inodes.insert(inode.id, key.clone());
                let Some(key) = key else { return Ok(Kept::Nothing) };
                let (id, is_new) = self.touch(key, rights, inode.aspects.map_or(Aspects::ALL, Aspects));
                Kept::record_if(is_new, || record::Inode { id, rights, ..inode.clone() })
            }
            AnyRecord::Touched(touched) => {
                let rights = ids.rights(touched.rights)?;
                let Some(key) = ids.key(touched.inode)? else { return Ok(Kept::Nothing) };
                let (inode, is_new) = self.touch(key.clone(), rights, Aspects(touched.aspects));
                Kept::record_if(is_new, || record::Touched { inode, rights, ..touched.clone() })
            }
            AnyRecord::Name(name) => {
                let rights = ids.rights(name.rights)?;
                let before = name.before.map(|id| ids.key(id)).transpose()?.flatten();
                let before = before.and_then(|key| self.inodes.get(key)).map(|inode| inode.id);
                let Some(directory) = ids.directory(name.directory)? else { return Ok(Kept::Nothing) };
                let is_new = self.names.insert((directory, name.name.clone(), rights));
                Kept::record_if(is_new, || record::Name { directory, before, rights, ..name.clone() })
            }
            _ => return Err(Malformed),
        })
    }

    /// Returns what is kept of a record of content.
    fn kept_content(&mut self, entry: &Entry, ids: &Ids) -> Outcome<Kept> {
        Ok(match &entry.record {
            AnyRecord::Range(range) => {
                match self.content(ids, range.inode, range.offset, entry.data_length)? {
                    Some(inode) => Kept::Range(record::Range { inode, ..range.clone() }),
                    None => Kept::Nothing,
                }
            }
            AnyRecord::Hole(hole) => match self.content(ids, hole.inode, hole.offset, hole.length)? {
                Some(inode) => Kept::record(&record::Hole { inode, ..hole.clone() }),
                None => Kept::Nothing,
            },
            AnyRecord::Whole(whole) => {
                let Some(inode) = self.inode(ids, whole.inode)? else { return Ok(Kept::Nothing) };
                if std::mem::replace(&mut inode.is_whole, true) {
                    return Ok(Kept::Nothing);
                }
                let inode = inode.id;
                self.kept.push(record::path_of(&whole.file).to_path_buf());
                Kept::record(&record::Whole { inode, ..whole.clone() })
            }
            AnyRecord::Linked(linked) => {
                let Some(inode) = self.inode(ids, linked.inode)? else { return Ok(Kept::Nothing) };
                let inode = inode.id;
                self.kept.push(record::path_of(&linked.link).to_path_buf());
                Kept::record(&record::Linked { inode, ..linked.clone() })
            }
            _ => return Err(Malformed),
        })
    }

    /// Returns the id of a directory, and whether a record is needed; `None` if the directory is left out.
    fn directory(&mut self, key: FileKey) -> Option<(u32, bool)> {
        if self.young.contains(&key) {
            return None;
        }
        let new = self.directories.len() as u32;
        let id = *self.directories.entry(key).or_insert(new);
        Some((id, id == new))
    }

    /// Returns an inode; `None` if it is left out.
    fn inode(&mut self, ids: &Ids, id: u32) -> Outcome<Option<&mut Inode>> {
        Ok(ids.key(id)?.and_then(|key| self.inodes.get_mut(key)))
    }

    /// Notes a change of aspects of an inode. Returns the id of the inode, and whether a record is needed.
    fn touch(&mut self, key: FileKey, rights: u32, aspects: Aspects) -> (u32, bool) {
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
        (inode.id, !is_known)
    }

    /// Notes a range of the content of an inode. Returns the id of the inode if a record is needed.
    fn content(&mut self, ids: &Ids, id: u32, offset: u64, length: u64) -> Outcome<Option<u32>> {
        let Some(inode) = self.inode(ids, id)? else { return Ok(None) };
        let range = AddressRange::new(Address(offset), Address(offset.saturating_add(length)));
        if inode.is_whole || inode.content.gaps(range).next().is_none() {
            return Ok(None);
        }
        inode.added.push(range);
        Ok(Some(inode.id))
    }

    pub(super) fn append<Body: Kind>(&mut self, body: &Body, data: &[u8]) -> Result<()> {
        self.write(&frame::encode(body, data), data)
    }

    fn write(&mut self, frame: &[u8], data: &[u8]) -> Result<()> {
        self.pending.extend(frame);
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
    pub(super) fn finish(mut self) -> Result<(u64, Vec<PathBuf>)> {
        self.flush()?;
        Ok((self.length, self.kept))
    }
}
