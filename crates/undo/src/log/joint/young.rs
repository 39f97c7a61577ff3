//! Inodes that did not exist at the checkpoint of a joined epoch.
//!
//! Owns: the evidence that an inode did not exist.
//! Does not: leave out records; `writer` does.

use std::collections::{HashMap, HashSet};

use crate::key::{FileKey, Time};
use crate::log::reader::ReadEpoch;
use crate::log::record::AnyRecord;

/// Finds inodes that did not exist when the first of several epochs began, and have lost a name since then. A rollback to
/// this moment needs none of their records.
///
/// A time of birth alone proves nothing: the clock can have been set back. An inode that existed then had a name, whose
/// first record leads to it, or has a name without a record. With several names, its time of birth is not recorded.
#[derive(Default)]
pub(super) struct Young {
    /// The time at which the first epoch began.
    begun: Option<Option<Time>>,
    /// Inodes, and whether all their records have a time of birth after the first epoch began.
    found: HashMap<FileKey, bool>,
    /// Inodes that have lost a name to which another inode, or none, led at first.
    replaced: HashSet<FileKey>,
    /// Inodes that stand for older ones, which a rollback has created again.
    made: HashSet<FileKey>,
    /// The recorded names, with the inodes to which they led at first.
    names: HashMap<(FileKey, Vec<u8>), Option<FileKey>>,
}

impl Young {
    /// Adds the records of an epoch. The epochs are added in rising order.
    pub(super) fn add(&mut self, epoch: &ReadEpoch) {
        let Some(begun) = *self.begun.get_or_insert(epoch.time) else { return };
        let (mut directories, mut inodes) = (HashMap::new(), HashMap::new());
        for entry in &epoch.records {
            let (ids, id, key, attributes) = match &entry.record {
                AnyRecord::Inode(inode) => (&mut inodes, inode.id, &inode.key, &inode.attributes),
                AnyRecord::Directory(directory) => {
                    (&mut directories, directory.id, &directory.key, &directory.attributes)
                }
                AnyRecord::Name(name) => {
                    let before = name.before.and_then(|before| inodes.get(&before).cloned());
                    if let Some(directory) = directories.get(&name.directory).cloned() {
                        self.name((directory, name.name.clone()), before);
                    }
                    continue;
                }
                AnyRecord::Alias(alias) => {
                    self.made.insert(alias.new.clone().into());
                    continue;
                }
                _ => continue,
            };
            let key = FileKey::from(key.clone());
            let is_young = attributes.born.is_some_and(|born| born > begun);
            *self.found.entry(key.clone()).or_insert(true) &= is_young;
            ids.insert(id, key);
        }
    }

    fn name(&mut self, place: (FileKey, Vec<u8>), before: Option<FileKey>) {
        let first = self.names.entry(place).or_insert_with(|| before.clone());
        if let Some(before) = before.filter(|before| first.as_ref() != Some(before)) {
            self.replaced.insert(before);
        }
    }

    /// Returns the inodes.
    pub(super) fn found(self) -> HashSet<FileKey> {
        let Self { found, replaced, made, names, .. } = self;
        let young = found.into_iter().filter(|(_, is_young)| *is_young).map(|(key, _)| key);
        let young: HashSet<FileKey> =
            young.filter(|key| replaced.contains(key) && !made.contains(key)).collect();
        // The name of an inode that did not exist can only be in a directory that did not exist.
        let is_named = names.iter().any(|((directory, _), before)| {
            !young.contains(directory) && before.as_ref().is_some_and(|before| young.contains(before))
        });
        if is_named { HashSet::new() } else { young }
    }
}
