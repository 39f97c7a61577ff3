//! The target of a rollback: the recorded states of files at a checkpoint.
//!
//! The records of an epoch describe the state of files at the beginning of the epoch, for all files that have changed
//! in the epoch. This module merges the records of all epochs since the checkpoint. A file without a record has not
//! changed since the checkpoint, and is not part of the target.
//!
//! Owns: merging epochs, and the order in which the old content of an inode is applied.
//! Invariants: if several epochs have a record for the same name or the same attributes, the oldest of these records
//! applies. Content is listed by epoch, newest epoch first, and within an epoch in the order of the records. A key is
//! the key of the present inode, even if a rollback has created the inode again.
//! Does not: access files.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::reader::{self, ReadEpoch};
use super::record::{self, AnyRecord, KeyMessage};
use crate::key::{Attributes, Extended, FileKey, Time};
use crate::rights::{Aspects, Rights, RightsId, Touch};

/// Maximum length of a chain of aliases. Each rollback that creates an inode again adds one alias. A longer chain must
/// be a cycle.
const ALIASES_MAX: usize = 1 << 20;

/// The index of an inode in [`Target`].
pub(crate) type Index = usize;

/// An inconsistency in the records of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    /// A record names an inode that no earlier record describes.
    #[error("a record of the undo log names inode {0}, but no earlier record describes this inode")]
    UnknownInode(u32),
    /// A record names a directory that no earlier record describes.
    #[error("a record of the undo log names directory {0}, but no earlier record describes this directory")]
    UnknownDirectory(u32),
    /// A record names rights that no earlier record describes.
    #[error("a record of the undo log names rights {0}, but no earlier record describes these rights")]
    UnknownRights(u32),
    /// A name is not one component of a path.
    #[error("a record of the undo log contains an invalid file name")]
    Name,
    /// This kind of record is not allowed in the file of an epoch.
    #[error("a record of the undo log is in the wrong file")]
    WrongPlace,
}

/// The recorded states of files at a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Target {
    pub(crate) inodes: Vec<TargetInode>,
    pub(crate) indices: HashMap<FileKey, Index>,
    /// The recorded names: for each directory and name, the inode to which the name led. `None` means that the name did
    /// not exist.
    pub(crate) names: BTreeMap<(Index, Vec<u8>), Option<Index>>,
    /// The rights with which the subject has changed a recorded name. Contains only names that the subject has changed
    /// with other rights than the rights of this program.
    pub(crate) names_by: HashMap<(Index, Vec<u8>), Vec<Rights>>,
    /// Files that can change undetected, as device and inode number.
    pub(crate) uncovered: Vec<(u64, u64)>,
    /// Inodes that epochs before the checkpoint preserve by hard links. The content of these inodes is rolled back even
    /// if the inodes had no name at the checkpoint.
    pub(crate) kept_before: HashSet<FileKey>,
}

/// The state of one inode at the checkpoint.
#[derive(Debug)]
pub(crate) struct TargetInode {
    pub(crate) key: FileKey,
    pub(crate) attributes: Attributes,
    /// A path for messages.
    pub(crate) path: PathBuf,
    /// The old content by epoch, newest epoch first.
    pub(crate) content: Vec<Layer>,
    /// The aspects that the subject has changed, with the rights of these changes. `None` means the rights of this
    /// program. If another aspect differs, another program has made the change.
    pub(crate) touched: Vec<(Aspects, Option<Rights>)>,
    /// The status change time in the oldest record. If the inode still has this time, the inode has not changed.
    pub(crate) changed: Option<Time>,
    /// Whether this rollback has created the inode again.
    pub(crate) is_made: bool,
}

impl TargetInode {
    /// Returns the aspects that the subject has changed.
    pub(crate) fn aspects(&self) -> Aspects {
        self.touched.iter().fold(Aspects::NONE, |all, (aspects, _)| all | *aspects)
    }

    /// Reports whether the ranges of all layers together contain every byte of the content.
    pub(crate) fn is_whole_in_pieces(&self) -> bool {
        let mut pieces: Vec<Piece> = self.content.iter().flat_map(|layer| &layer.pieces).copied().collect();
        pieces.sort_unstable_by_key(|piece| piece.offset);
        let end = pieces.iter().try_fold(0, |end: u64, piece| {
            let next = end.max(piece.offset.saturating_add(piece.length));
            if piece.offset <= end { Ok(next) } else { Err(end) }
        });
        end.unwrap_or_else(|gap| gap) >= self.attributes.size
    }

    /// Adds a change. The attributes of an aspect are those before the first change of the aspect.
    fn touch(&mut self, touch: Touch, rights: Option<Rights>, before: &Attributes) {
        let new = touch.aspects.without(self.aspects());
        if self.touched.is_empty() || !new.is_none() {
            self.take(new, before);
        }
        let known = self.touched.iter_mut().find(|(_, known)| *known == rights);
        match known {
            Some((aspects, _)) => *aspects |= touch.aspects,
            None => self.touched.push((touch.aspects, rights)),
        }
    }

    fn take(&mut self, aspects: Aspects, before: &Attributes) {
        let own = &mut self.attributes;
        let had_times =
            self.touched.iter().any(|(known, _)| known.intersects(Aspects::CONTENT | Aspects::TIMES));
        if aspects.contains(Aspects::CONTENT) {
            own.size = before.size;
        }
        if aspects.intersects(Aspects::CONTENT | Aspects::TIMES) && !had_times {
            (own.accessed, own.modified) = (before.accessed, before.modified);
        }
        if aspects.contains(Aspects::RIGHTS) {
            (own.mode, own.owner, own.group) = (before.mode, before.owner, before.group);
        }
        let is_taken = |one: &Extended| aspects.contains(Aspects::of_extended(&one.name));
        own.extended.retain(|one| !is_taken(one));
        own.extended.extend(before.extended.iter().filter(|one| is_taken(one)).cloned());
    }
}

/// The content of an inode at the beginning of an epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    pub(crate) ordinal: u64,
    /// The file in a keep directory that contains the whole content. A rollback applies this file before `pieces`.
    pub(crate) whole: Option<PathBuf>,
    /// The file in a keep directory with the content at the end of the newest epoch. A rollback applies this file before
    /// `pieces`. Only the newest epoch has such a file.
    pub(crate) shadow: Option<PathBuf>,
    /// Ranges in the order of the records. If two ranges overlap, the content of the first range is correct.
    pub(crate) pieces: Vec<Piece>,
}

impl Layer {
    /// Returns the file in a keep directory that a rollback applies before `pieces`.
    pub(crate) fn copy(&self) -> Option<&PathBuf> {
        self.whole.as_ref().or(self.shadow.as_ref())
    }

    /// Adds a range. Ignores a range that was recorded after the whole content, because the content of this range can
    /// be newer than the beginning of the epoch. Such a record is possible: a writer that opens the log and continues
    /// the epoch does not know which content is already recorded.
    fn add(&mut self, piece: Piece) {
        if self.whole.is_none() {
            self.pieces.push(piece);
        }
    }
}

/// A range of a file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Offset of the content in the file of the epoch; `None` for a hole.
    pub(crate) data_offset: Option<u64>,
}

/// Inodes that rollbacks have created again. Maps the old key of an inode to the new key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aliases(HashMap<FileKey, FileKey>);

impl Aliases {
    pub(crate) fn add(&mut self, old: FileKey, new: FileKey) {
        self.0.insert(old, new);
    }

    /// Returns the present inode for a recorded device and inode number.
    pub(crate) fn resolve_number(&self, file: (u64, u64)) -> (u64, u64) {
        let known = self.0.keys().find(|key| (key.device, key.inode) == file);
        known.map_or(file, |key| {
            let now = self.resolve(key.clone());
            (now.device, now.inode)
        })
    }

    /// Returns the key of the present inode for a recorded key, by following aliases.
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

/// Collects the aliases of all epochs.
pub(crate) fn aliases(epochs: &[ReadEpoch]) -> Aliases {
    let mut aliases = Aliases::default();
    for entry in epochs.iter().flat_map(|epoch| &epoch.records) {
        if let AnyRecord::Alias(alias) = &entry.record {
            aliases.add(alias.old.clone().into(), alias.new.clone().into());
        }
    }
    aliases
}

/// Merges epochs. The first of `epochs` begins at the checkpoint, and the last of `epochs` is the newest epoch.
pub(crate) fn merge(epochs: &[ReadEpoch], aliases: &Aliases) -> Result<Target, Malformed> {
    let mut target = Target::default();
    for epoch in epochs {
        let mut ids = Ids::default();
        for entry in &epoch.records {
            target.add(epoch.ordinal, entry, &mut ids, aliases)?;
        }
    }
    let newest = epochs.last().map_or(0, |epoch| epoch.ordinal);
    for inode in &mut target.inodes {
        inode.content.reverse();
        for layer in inode.content.iter_mut().filter(|layer| layer.ordinal != newest) {
            layer.shadow = None;
        }
    }
    Ok(target)
}

/// Returns the inodes that these epochs preserve by hard links.
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

/// Maps ids in the records of one epoch to indices of inodes in [`Target`].
#[derive(Default)]
struct Ids {
    directories: HashMap<u32, Index>,
    inodes: HashMap<u32, Index>,
    rights: HashMap<u32, Rights>,
}

impl Ids {
    fn inode(&self, id: u32) -> Result<Index, Malformed> {
        self.inodes.get(&id).copied().ok_or(Malformed::UnknownInode(id))
    }

    fn directory(&self, id: u32) -> Result<Index, Malformed> {
        self.directories.get(&id).copied().ok_or(Malformed::UnknownDirectory(id))
    }

    /// Returns `None` for the rights of this program.
    fn rights(&self, id: u32) -> Result<Option<Rights>, Malformed> {
        if RightsId(id) == RightsId::OWN {
            return Ok(None);
        }
        self.rights.get(&id).cloned().map(Some).ok_or(Malformed::UnknownRights(id))
    }
}

impl Target {
    fn add(
        &mut self,
        ordinal: u64,
        entry: &reader::Entry,
        ids: &mut Ids,
        aliases: &Aliases,
    ) -> Result<(), Malformed> {
        match &entry.record {
            AnyRecord::Directory(directory) => {
                let before = &directory.attributes;
                let index = self.inode(&directory.key, before, &directory.path, None, aliases);
                // A change of a name in a directory sets the modification time of the directory.
                let touch = Touch { aspects: Aspects::TIMES, rights: RightsId::OWN };
                self.inodes[index].touch(touch, None, before);
                ids.directories.insert(directory.id, index);
            }
            AnyRecord::Inode(inode) => {
                let before = &inode.attributes;
                let index = self.inode(&inode.key, before, &inode.path, inode.changed, aliases);
                let aspects = inode.aspects.map_or(Aspects::ALL, Aspects);
                let touch = Touch { aspects, rights: RightsId(inode.rights) };
                self.inodes[index].touch(touch, ids.rights(inode.rights)?, before);
                ids.inodes.insert(inode.id, index);
            }
            AnyRecord::Rights(rights) => {
                ids.rights.insert(rights.id, rights.clone().into());
            }
            AnyRecord::Touched(touched) => {
                let index = ids.inode(touched.inode)?;
                let touch = Touch { aspects: Aspects(touched.aspects), rights: RightsId(touched.rights) };
                let rights = ids.rights(touched.rights)?;
                self.inodes[index].touch(touch, rights, &touched.attributes);
            }
            AnyRecord::Name(name) => self.name(name, ids)?,
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
            AnyRecord::Shadow(shadow) => {
                let layer = self.layer(ids.inode(shadow.inode)?, ordinal);
                layer.shadow = Some(record::path_of(&shadow.file).to_path_buf());
            }
            AnyRecord::Uncovered(file) => self.uncovered.push((file.device, file.inode)),
            // The target needs no link: the link only preserves the inode, and a rollback finds the inode by its
            // handle.
            AnyRecord::Linked(linked) => drop(ids.inode(linked.inode)?),
            AnyRecord::Exact(_)
            | AnyRecord::Retracted(_)
            | AnyRecord::Ended(_)
            | AnyRecord::Idle(_)
            | AnyRecord::Running(_)
            | AnyRecord::Alias(_) => {}
            _ => return Err(Malformed::WrongPlace),
        }
        Ok(())
    }

    fn inode(
        &mut self,
        key: &KeyMessage,
        attributes: &Attributes,
        path: &[u8],
        changed: Option<Time>,
        aliases: &Aliases,
    ) -> Index {
        let key = aliases.resolve(key.clone().into());
        *self.indices.entry(key.clone()).or_insert_with(|| {
            let path = Path::new(record::path_of(path)).to_path_buf();
            let (content, touched) = (Vec::new(), Vec::new());
            let attributes = attributes.clone();
            self.inodes.push(TargetInode {
                key,
                attributes,
                path,
                content,
                touched,
                changed,
                is_made: false,
            });
            self.inodes.len() - 1
        })
    }

    fn name(&mut self, name: &record::Name, ids: &Ids) -> Result<(), Malformed> {
        let before = name.before.map(|id| ids.inode(id)).transpose()?;
        let place = (ids.directory(name.directory)?, name.name.clone());
        if !is_plain_name(&place.1) {
            return Err(Malformed::Name);
        }
        match ids.rights(name.rights)? {
            Some(rights) => {
                let is_first = !self.names.contains_key(&place);
                let by = self.names_by.entry(place.clone());
                // A name with a record and without a list was changed with the rights of this program.
                match by {
                    Entry::Occupied(mut by) if !by.get().contains(&rights) => by.get_mut().push(rights),
                    Entry::Vacant(by) if is_first => drop(by.insert(vec![rights])),
                    _ => {}
                }
            }
            None => drop(self.names_by.remove(&place)),
        }
        self.names.entry(place).or_insert(before);
        Ok(())
    }

    /// Returns the layer of an inode for an epoch. During the merge, the layer of the newest epoch is last.
    fn layer(&mut self, index: Index, ordinal: u64) -> &mut Layer {
        let content = &mut self.inodes[index].content;
        if content.last().is_none_or(|layer| layer.ordinal != ordinal) {
            content.push(Layer { ordinal, ..Layer::default() });
        }
        content.last_mut().expect("a layer was pushed if there was none")
    }

    /// Returns the path of a name, for messages.
    pub(crate) fn path_of(&self, directory: Index, name: &[u8]) -> PathBuf {
        self.inodes[directory].path.join(record::path_of(name))
    }
}

/// Reports whether bytes are a valid component of a path.
fn is_plain_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}
