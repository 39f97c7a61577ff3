//! Objects behind mappings: files, shared memory, memory files. Each object is saved once.
//!
//! Owns: the ids of the objects, and the pages of objects whose content belongs to the image.
//! Does not: open or describe objects; the memory kinds do.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use image::RecordSet;
use model::{Inode, Pid};
use resource::Obstacle;
use resource::memory::{self, AreaRecord, Content, MappingOf, MemoryKind, ObjectKey, ObjectRecord};
use sys::{Errno, Error};
use tracee::procfs::Mapping;
use track::Moment;

use crate::error::Result;
use crate::records::{EngineRecord, ObjectsMessage};

/// The maximum number of files that are held for one subject. A large desktop program maps about 300 files.
const HELD_MAX: usize = 512;

#[derive(Default)]
pub(super) struct Objects {
    numbers: HashMap<ObjectKey, u64>,
    records: BTreeMap<u64, ObjectRecord>,
    /// Open files of the objects whose pages are saved.
    pub(super) files: BTreeMap<u64, File>,
    /// O_PATH descriptors of files that a restore needs and whose pages are not saved.
    held: BTreeMap<u64, Arc<OwnedFd>>,
    /// Obstacles (reasons to refuse a checkpoint): objects that could not be inspected.
    obstacles: Vec<Obstacle>,
    /// Obstacles of objects whose mapping had disappeared, or mapped another object, when the object was
    /// inspected.
    pub(super) gone: Vec<Obstacle>,
}

impl Objects {
    /// Adds the record of all objects, with their present lengths.
    pub(super) fn put(&self, records: &mut RecordSet) {
        let mut objects: Vec<ObjectRecord> = self.records.values().cloned().collect();
        for object in &mut objects {
            if let Some(length) = self.files.get(&object.id).and_then(|file| file.metadata().ok()) {
                object.length = length.len();
            }
        }
        ObjectsMessage { objects }.put(records, image::Owner::Tree);
    }

    /// Inspects the objects behind the mappings of a process. Returns whether all mappings still existed.
    pub(super) fn inspect(&mut self, pid: Pid, mappings: &[Mapping]) -> bool {
        let gone_before = self.gone.len();
        for mapping in mappings {
            let Some(key) = ObjectKey::of(mapping) else { continue };
            let writable = mapping.protection.shared && mapping.flags.has("mw");
            let of = MappingOf { pid, mapping };
            let known = self.numbers.get(&key).copied();
            if let Some(record) = known.and_then(|number| self.records.get_mut(&number)) {
                record.writable |= writable;
            }
            if known.is_some_and(|number| !self.may_be_of_another_kind(number, mapping)) {
                continue;
            }
            // A mapping that no kind recognizes is already an obstacle.
            let Some(kind) = memory::kind_of(of) else { continue };
            let record = known.and_then(|number| self.records.get(&number));
            if record.is_some_and(|record| record.kind == kind.name()) {
                continue;
            }
            if let Err(error) = self.add(key, of, kind, writable) {
                let why = format!("the object behind it cannot be looked at: {error}");
                let (found, fix) = if error.says_gone() {
                    let fix = "try again in a moment: the area or the name of its file was just going away";
                    (&mut self.gone, fix)
                } else {
                    (&mut self.obstacles, "run undying as root or with CAP_CHECKPOINT_RESTORE")
                };
                found.push(of.obstacle("mapped object", &why, fix));
            }
        }
        self.gone.len() == gone_before
    }

    /// Reports whether a mapping may show that its object needs another kind. This happens if the file has
    /// lost its name since the last inspection. It also happens if a file that was mapped privately is now
    /// mapped shared.
    fn may_be_of_another_kind(&self, number: u64, mapping: &Mapping) -> bool {
        let is_saved = self.files.contains_key(&number);
        let has_lost_name = mapping.name.ends_with(" (deleted)");
        (mapping.protection.shared && (has_lost_name || !is_saved)) || (has_lost_name && !is_saved)
    }

    /// Marks the objects that can be written through these mappings. Called when the flags of the mappings
    /// are known.
    pub(super) fn mark_writable(&mut self, mappings: &[Mapping]) {
        for mapping in mappings.iter().filter(|mapping| mapping.protection.shared && mapping.flags.has("mw"))
        {
            let number = ObjectKey::of(mapping).and_then(|key| self.numbers.get(&key));
            if let Some(record) = number.and_then(|number| self.records.get_mut(number)) {
                record.writable = true;
            }
        }
    }

    fn add(
        &mut self,
        key: ObjectKey,
        of: MappingOf<'_>,
        kind: &dyn MemoryKind,
        writable: bool,
    ) -> Result<()> {
        let (payload, length) = kind.describe(of)?;
        let known = self.numbers.get(&key).and_then(|number| self.records.get(number));
        let writable = writable || known.is_some_and(|record| record.writable);
        let next = self.records.last_key_value().map_or(1, |(last, _)| last + 1);
        let id = known.map_or(next, |record| record.id);
        if matches!(kind.content(of), Content::Object | Content::PrivateAndObject) {
            let link = of.link();
            let file = File::open(&link).map_err(|error| Error::path("open", &link, error))?;
            if shows_another(&file, key)? {
                // Another object was mapped at this address after the mappings were listed.
                return Err(Error::path("find the listed object at", &link, Errno::ENOENT).into());
            }
            self.files.insert(id, file);
        }
        let record = ObjectRecord {
            id,
            kind: kind.name().to_owned(),
            version: kind.version(),
            payload,
            length,
            inode: key.file_inode(),
            writable,
        };
        self.numbers.insert(key, id);
        self.records.insert(id, record);
        Ok(())
    }

    /// Opens the files that a restore needs and whose pages are not saved, and returns them. As long as a file is open,
    /// a restore finds the file, even if another file gets its name. The number of files has a limit, so that programs
    /// with very many libraries leave descriptors for other uses.
    pub(super) fn hold_files(&mut self) -> Vec<Arc<OwnedFd>> {
        for (id, record) in &self.records {
            if self.files.contains_key(id) {
                self.held.remove(id);
            } else if !self.held.contains_key(id) && self.held.len() < HELD_MAX {
                let kind = memory::kind_named(&record.kind);
                let file = kind.and_then(|kind| kind.hold(record)).filter(leaves_room);
                self.held.extend(file.map(|file| (*id, Arc::new(file))));
            }
        }
        self.held.values().cloned().collect()
    }

    /// Removes the objects that none of these mappings refers to, and returns their ids.
    pub(super) fn keep_those_of<'a>(&mut self, mappings: impl Iterator<Item = &'a Mapping>) -> Vec<u64> {
        let used: HashSet<ObjectKey> = mappings.filter_map(ObjectKey::of).collect();
        let unused = self.numbers.extract_if(|key, _| !used.contains(key));
        let gone: Vec<u64> = unused.map(|(_, number)| number).collect();
        for number in &gone {
            self.records.remove(number);
            self.files.remove(number);
            self.held.remove(number);
        }
        gone
    }

    /// Returns the obstacles and removes them. An object whose mapping had disappeared is an obstacle only in
    /// a stopped subject, because a running subject is inspected again.
    pub(super) fn take_obstacles(&mut self, moment: Moment) -> Vec<Obstacle> {
        let mut found = std::mem::take(&mut self.obstacles);
        let gone = std::mem::take(&mut self.gone);
        if moment == Moment::Stopped {
            found.extend(gone);
        }
        found
    }

    /// Returns the id of the file to which `/proc/PID/exe` refers; `None` if no mapping refers to that file.
    pub(super) fn executable(&self, pid: Pid, mappings: &[Mapping]) -> Result<Option<u64>> {
        let link = format!("/proc/{pid}/exe");
        let found = std::fs::metadata(&link).map_err(|error| Error::path("look at", &link, error))?;
        let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        let wanted = ObjectKey { device, inode: Inode(found.ino()) };
        let path = std::fs::read_link(&link).map_err(|error| Error::path("read", &link, error))?;
        let mapped =
            mappings.iter().filter_map(|mapping| Some((ObjectKey::of(mapping)?, mapping.name.as_str())));
        let key = executable_key(mapped, wanted, &path);
        Ok(key.and_then(|key| self.numbers.get(&key)).copied())
    }

    pub(super) fn mapping_record(&self, mapping: &Mapping) -> AreaRecord {
        let number = ObjectKey::of(mapping).and_then(|key| self.numbers.get(&key)).copied().unwrap_or(0);
        AreaRecord::new(mapping, number)
    }

    /// Waits until the kernel changes no memory for requests to the objects. Called inside the pause, before pages are
    /// copied.
    pub(super) fn settle(&self) -> Result<()> {
        for record in self.records.values() {
            if let Some(kind) = memory::kind_named(&record.kind) {
                kind.settle(record)?;
            }
        }
        Ok(())
    }

    /// Updates the records inside the pause.
    pub(super) fn inside(&mut self) -> Result<()> {
        for record in self.records.values_mut() {
            if let Some(kind) = memory::kind_named(&record.kind) {
                kind.inside(record)?;
            }
        }
        Ok(())
    }

    /// Reports whether the object of a mapping is a file on a tmpfs, whose content each image contains.
    pub(super) fn is_memory_file(&self, key: ObjectKey) -> bool {
        let number = self.numbers.get(&key);
        let file = number.and_then(|number| self.files.get(number));
        file.is_some_and(resource::files::is_memory_file)
    }

    pub(super) fn saved(&self) -> impl Iterator<Item = (u64, &File)> {
        self.files.iter().map(|(id, file)| (*id, file))
    }
}

/// Returns the key of the executable, chosen from mapped files and their paths.
///
/// Device and inode are compared first. Some file systems (overlayfs, btrfs) report different devices in
/// `maps` and in stat(2). For such a file system, inode and path are compared.
fn executable_key<'a>(
    mapped: impl Iterator<Item = (ObjectKey, &'a str)> + Clone,
    wanted: ObjectKey,
    path: &Path,
) -> Option<ObjectKey> {
    let keys = |(key, _)| key;
    let exact = mapped.clone().map(keys).find(|key| *key == wanted);
    exact.or_else(|| {
        let mut named = mapped.filter(|(key, name)| key.inode == wanted.inode && Path::new(name) == path);
        named.next().map(keys)
    })
}

/// Reports whether less than half of the descriptors that this process may have are in use. The kernel assigns the
/// lowest free number.
fn leaves_room(file: &OwnedFd) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.is_none_or(|limit| (file.as_raw_fd() as u64) < limit / 2)
}

/// Reports whether an opened file is certainly not the object of this key. If the devices differ, the result
/// is `false`, because some file systems have another device in the list of mappings.
fn shows_another(file: &File, key: ObjectKey) -> Result<bool> {
    let found = file.metadata().map_err(|error| Error::new("look at a memory object", error))?;
    let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    Ok(device == key.device && found.ino() != key.inode.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(device: (u32, u32), inode: u64) -> ObjectKey {
        ObjectKey { device, inode: Inode(inode) }
    }

    #[test]
    fn the_executable_is_known_by_device_and_inode() {
        let path = Path::new("/bin/program");
        let (program, other) = (key((8, 1), 7), key((8, 2), 7));
        // The first mapped file is in another file system and has the same inode number.
        let mapped = [(other, "/lib/other"), (program, "/bin/program")];
        assert_eq!(executable_key(mapped.into_iter(), program, path), Some(program));
        assert_eq!(executable_key([(other, "/lib/other")].into_iter(), program, path), None);
    }

    #[test]
    fn the_path_decides_where_maps_and_stat_differ_in_the_device() {
        let path = Path::new("/bin/program");
        let listed = key((0, 30), 7);
        let mapped = [(key((0, 30), 8), "/bin/program"), (listed, "/bin/program")];
        assert_eq!(executable_key(mapped.into_iter(), key((0, 25), 7), path), Some(listed));
    }
}
