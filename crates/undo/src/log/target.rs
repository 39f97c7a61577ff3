//! The state of files at a checkpoint, as far as it differs from now: epochs merged.
//!
//! Owns: the merge; which content of an inode is applied in which order.
//! Invariants: of names and attributes the oldest epoch wins; content is listed newest epoch first, and within an epoch
//! in the order in which it is applied; keys are those of the inodes that exist now.
//! Does not: look at files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::reader::{Entry, ReadEpoch};
use super::record::{self, AnyRecord, KeyMessage};
use crate::key::{Attributes, FileKey};

/// Most inodes that one inode was made again as, one after the other: a chain that is longer is a circle.
const ALIASES_MAX: usize = 1 << 20;

/// An inode of a [`Target`].
pub(crate) type Index = usize;

/// Records that contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    /// No record has introduced the inode.
    #[error("a record of the undo log names inode {0}, which it does not have")]
    UnknownInode(u32),
    /// No record has introduced the directory.
    #[error("a record of the undo log names directory {0}, which it does not have")]
    UnknownDirectory(u32),
    /// A name is not one component of a path.
    #[error("a record of the undo log holds a name that no directory can have")]
    Name,
    /// A kind of record that belongs into another file.
    #[error("a record of the undo log is in the wrong file")]
    WrongPlace,
}

/// What differs from now.
#[derive(Debug, Default)]
pub(crate) struct Target {
    pub(crate) inodes: Vec<TargetInode>,
    pub(crate) indices: HashMap<FileKey, Index>,
    /// What each name of a directory led to.
    pub(crate) names: BTreeMap<(Index, Vec<u8>), Option<Index>>,
    /// Files that can have changed without a trace: device and inode.
    pub(crate) uncovered: Vec<(u64, u64)>,
    /// Inodes that earlier epochs keep by links: their content goes back, too, although no name leads to them.
    pub(crate) kept_before: HashSet<FileKey>,
}

/// An inode at the checkpoint.
#[derive(Debug)]
pub(crate) struct TargetInode {
    pub(crate) key: FileKey,
    pub(crate) attributes: Attributes,
    /// For messages.
    pub(crate) path: PathBuf,
    /// Newest epoch first.
    pub(crate) content: Vec<Layer>,
    /// Whether only names in it have changed: its mode and owner are as recorded unless another program has changed them.
    pub(crate) is_directory_only: bool,
}

/// Content of an inode when an epoch began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    pub(crate) ordinal: u64,
    /// All of it, before the pieces.
    pub(crate) whole: Option<PathBuf>,
    /// In the order in which they were recorded: of two that overlap, the first is right.
    pub(crate) pieces: Vec<Piece>,
}

impl Layer {
    /// Adds a piece. What was recorded after all of the content is newer than the beginning of the epoch: a program
    /// that goes on with a log in the same epoch does not know what was recorded before.
    fn add(&mut self, piece: Piece) {
        if self.whole.is_none() {
            self.pieces.push(piece);
        }
    }
}

/// A range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Where the content is in the epoch's file; `None` for a hole.
    pub(crate) data_offset: Option<u64>,
}

/// Inodes that were made again: old and new key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aliases(HashMap<FileKey, FileKey>);

impl Aliases {
    pub(crate) fn add(&mut self, old: FileKey, new: FileKey) {
        self.0.insert(old, new);
    }

    /// The inode that a key means now.
    pub(crate) fn resolve(&self, key: FileKey) -> FileKey {
        let mut key = key;
        for _ in 0..ALIASES_MAX {
            match self.0.get(&key) {
                Some(newer) => key = newer.clone(),
                None => break,
            }
        }
        key
    }
}

/// The aliases of all epochs.
pub(crate) fn aliases(epochs: &[ReadEpoch]) -> Aliases {
    let mut aliases = Aliases::default();
    for entry in epochs.iter().flat_map(|epoch| &epoch.records) {
        if let AnyRecord::Alias(alias) = &entry.record {
            aliases.add(alias.old.clone().into(), alias.new.clone().into());
        }
    }
    aliases
}

/// Merges the epochs from the one that begins at the checkpoint, oldest first.
pub(crate) fn merge(epochs: &[ReadEpoch], aliases: &Aliases) -> Result<Target, Malformed> {
    let mut target = Target::default();
    for epoch in epochs {
        let mut ids = Ids::default();
        for entry in &epoch.records {
            target.add(epoch.ordinal, entry, &mut ids, aliases)?;
        }
    }
    for inode in &mut target.inodes {
        inode.content.reverse();
    }
    Ok(target)
}

/// The inodes that epochs keep by links.
pub(crate) fn kept_by(epochs: &[ReadEpoch], aliases: &Aliases) -> HashSet<FileKey> {
    let mut kept = HashSet::new();
    for epoch in epochs {
        let mut keys = HashMap::new();
        for entry in &epoch.records {
            match &entry.record {
                AnyRecord::Inode(inode) => {
                    keys.insert(inode.id, &inode.key);
                }
                AnyRecord::Linked(linked) => kept.extend(
                    keys.get(&linked.inode).map(|key| aliases.resolve(FileKey::from((*key).clone()))),
                ),
                _ => {}
            }
        }
    }
    kept
}

/// What the ids of one epoch mean.
#[derive(Default)]
struct Ids {
    directories: HashMap<u32, Index>,
    inodes: HashMap<u32, Index>,
}

impl Ids {
    fn inode(&self, id: u32) -> Result<Index, Malformed> {
        self.inodes.get(&id).copied().ok_or(Malformed::UnknownInode(id))
    }

    fn directory(&self, id: u32) -> Result<Index, Malformed> {
        self.directories.get(&id).copied().ok_or(Malformed::UnknownDirectory(id))
    }
}

impl Target {
    fn add(
        &mut self,
        ordinal: u64,
        entry: &Entry,
        ids: &mut Ids,
        aliases: &Aliases,
    ) -> Result<(), Malformed> {
        match &entry.record {
            AnyRecord::Directory(directory) => {
                let attributes = directory.attributes.clone().into();
                let index = self.inode(&directory.key, attributes, &directory.path, true, aliases);
                ids.directories.insert(directory.id, index);
            }
            AnyRecord::Inode(inode) => {
                let attributes = inode.attributes.clone().into();
                let index = self.inode(&inode.key, attributes, &inode.path, false, aliases);
                ids.inodes.insert(inode.id, index);
            }
            AnyRecord::Name(name) => {
                let before = name.before.map(|id| ids.inode(id)).transpose()?;
                let place = (ids.directory(name.directory)?, name.name.clone());
                if !is_plain_name(&place.1) {
                    return Err(Malformed::Name);
                }
                self.names.entry(place).or_insert(before);
            }
            AnyRecord::Range(range) => {
                let data_offset = Some(entry.data_offset);
                let piece = Piece { offset: range.offset, length: entry.data_length, data_offset };
                self.layer(ids.inode(range.inode)?, ordinal).add(piece);
            }
            AnyRecord::Hole(hole) => {
                let piece = Piece { offset: hole.offset, length: hole.length, data_offset: None };
                self.layer(ids.inode(hole.inode)?, ordinal).add(piece);
            }
            AnyRecord::Whole(whole) => {
                let layer = self.layer(ids.inode(whole.inode)?, ordinal);
                layer.whole.get_or_insert_with(|| record::path_of(&whole.file).to_path_buf());
            }
            AnyRecord::Uncovered(file) => self.uncovered.push((file.device, file.inode)),
            // Links keep inodes, which are found by their handles.
            AnyRecord::Linked(linked) => drop(ids.inode(linked.inode)?),
            AnyRecord::Exact(_) | AnyRecord::Ended(_) | AnyRecord::Alias(_) => {}
            _ => return Err(Malformed::WrongPlace),
        }
        Ok(())
    }

    fn inode(
        &mut self,
        key: &KeyMessage,
        attributes: Attributes,
        path: &[u8],
        is_directory_only: bool,
        aliases: &Aliases,
    ) -> Index {
        let key = aliases.resolve(key.clone().into());
        let index = *self.indices.entry(key.clone()).or_insert_with(|| {
            let path = Path::new(record::path_of(path)).to_path_buf();
            let content = Vec::new();
            self.inodes.push(TargetInode { key, attributes, path, content, is_directory_only });
            self.inodes.len() - 1
        });
        self.inodes[index].is_directory_only &= is_directory_only;
        index
    }

    /// The layer of an epoch. While epochs are merged, the newest is last.
    fn layer(&mut self, index: Index, ordinal: u64) -> &mut Layer {
        let content = &mut self.inodes[index].content;
        if content.last().is_none_or(|layer| layer.ordinal != ordinal) {
            content.push(Layer { ordinal, ..Layer::default() });
        }
        content.last_mut().expect("a layer was pushed if there was none")
    }

    /// The path of a name, for messages.
    pub(crate) fn path_of(&self, directory: Index, name: &[u8]) -> PathBuf {
        self.inodes[directory].path.join(record::path_of(name))
    }
}

/// Whether bytes can be one component of a path.
fn is_plain_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}
