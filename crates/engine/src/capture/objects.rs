//! Objects behind mappings: files, shared memory, memory files. Each is saved once.
//!
//! Owns: their numbers, and the pages of objects whose content belongs to the image.
//! Does not: open or describe them; the memory kinds do.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use image::RecordSet;
use model::{Inode, Pid};
use resource::Obstacle;
use resource::memory::{self, AreaOf, AreaRecord, Content, MemoryKind, ObjectKey, ObjectRecord};
use sys::{Errno, Error};
use tracee::procfs::Area;
use track::Moment;

use crate::error::Result;
use crate::records::{EngineRecord, ObjectsMessage};

#[derive(Default)]
pub(super) struct Objects {
    numbers: HashMap<ObjectKey, u64>,
    records: BTreeMap<u64, ObjectRecord>,
    /// Open files of those whose pages are saved.
    pub(super) files: BTreeMap<u64, File>,
    /// Objects that could not be looked at.
    obstacles: Vec<Obstacle>,
    /// The same of those whose area was gone by then, or showed another object.
    pub(super) gone: Vec<Obstacle>,
}

impl Objects {
    /// Adds the record of all objects, with the lengths they have now.
    pub(super) fn put(&self, records: &mut RecordSet) {
        let mut objects: Vec<ObjectRecord> = self.records.values().cloned().collect();
        for object in &mut objects {
            if let Some(length) = self.files.get(&object.id).and_then(|file| file.metadata().ok()) {
                object.length = length.len();
            }
        }
        ObjectsMessage { objects }.put(records, image::Owner::Tree);
    }

    /// Learns the objects behind the areas of a process; whether all areas were still there.
    pub(super) fn look(&mut self, pid: Pid, areas: &[Area]) -> bool {
        let gone_before = self.gone.len();
        for area in areas {
            let Some(key) = ObjectKey::of(area) else { continue };
            let writable = area.protection.shared && area.flags.has("mw");
            let of = AreaOf { pid, area };
            let known = self.numbers.get(&key).copied();
            if let Some(record) = known.and_then(|number| self.records.get_mut(&number)) {
                record.writable |= writable;
            }
            if known.is_some_and(|number| !self.may_be_of_another_kind(number, area)) {
                continue;
            }
            // An area that no kind claims is an obstacle already.
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

    /// Whether an area may show that its object needs another kind than the one that described it: a file has lost its
    /// name since, or the content of a file that was mapped privately is written through a shared mapping.
    fn may_be_of_another_kind(&self, number: u64, area: &Area) -> bool {
        let is_saved = self.files.contains_key(&number);
        let has_lost_name = area.name.ends_with(" (deleted)");
        (area.protection.shared && (has_lost_name || !is_saved)) || (has_lost_name && !is_saved)
    }

    /// Takes note of areas through which their objects can be written, once their flags are known.
    pub(super) fn mark_writable(&mut self, areas: &[Area]) {
        for area in areas.iter().filter(|area| area.protection.shared && area.flags.has("mw")) {
            let number = ObjectKey::of(area).and_then(|key| self.numbers.get(&key));
            if let Some(record) = number.and_then(|number| self.records.get_mut(number)) {
                record.writable = true;
            }
        }
    }

    fn add(&mut self, key: ObjectKey, of: AreaOf<'_>, kind: &dyn MemoryKind, writable: bool) -> Result<()> {
        let (payload, length) = kind.describe(of)?;
        let known = self.numbers.get(&key).and_then(|number| self.records.get(number));
        let writable = writable || known.is_some_and(|record| record.writable);
        let next = self.records.last_key_value().map_or(1, |(last, _)| last + 1);
        let id = known.map_or(next, |record| record.id);
        if matches!(kind.content(of), Content::Object | Content::PrivateAndObject) {
            let link = of.link();
            let file = File::open(&link).map_err(|error| Error::path("open", &link, error))?;
            if shows_another(&file, key)? {
                // Mapped in its place since the areas were listed.
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

    /// Forgets objects that none of these areas shows, and tells their numbers.
    pub(super) fn keep_those_of<'a>(&mut self, areas: impl Iterator<Item = &'a Area>) -> Vec<u64> {
        let used: HashSet<ObjectKey> = areas.filter_map(ObjectKey::of).collect();
        let unused = self.numbers.extract_if(|key, _| !used.contains(key));
        let gone: Vec<u64> = unused.map(|(_, number)| number).collect();
        for number in &gone {
            self.records.remove(number);
            self.files.remove(number);
        }
        gone
    }

    /// What could not be looked at, once. What was gone stands in the way only of a subject that stands: one that runs
    /// is looked at again.
    pub(super) fn take_obstacles(&mut self, moment: Moment) -> Vec<Obstacle> {
        let mut found = std::mem::take(&mut self.obstacles);
        let gone = std::mem::take(&mut self.gone);
        if moment == Moment::Stopped {
            found.extend(gone);
        }
        found
    }

    /// The object number of the file that `/proc/PID/exe` leads to; `None` when no area maps that file.
    pub(super) fn executable(&self, pid: Pid, areas: &[Area]) -> Result<Option<u64>> {
        let link = format!("/proc/{pid}/exe");
        let found = std::fs::metadata(&link).map_err(|error| Error::path("look at", &link, error))?;
        let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        let wanted = ObjectKey { device, inode: Inode(found.ino()) };
        let path = std::fs::read_link(&link).map_err(|error| Error::path("read", &link, error))?;
        let mapped = areas.iter().filter_map(|area| Some((ObjectKey::of(area)?, area.name.as_str())));
        let key = executable_key(mapped, wanted, &path);
        Ok(key.and_then(|key| self.numbers.get(&key)).copied())
    }

    pub(super) fn area_record(&self, area: &Area) -> AreaRecord {
        let number = ObjectKey::of(area).and_then(|key| self.numbers.get(&key)).copied().unwrap_or(0);
        AreaRecord::new(area, number)
    }

    /// Inside the pause: brings the records up to date.
    pub(super) fn inside(&mut self) -> Result<()> {
        for record in self.records.values_mut() {
            if let Some(kind) = memory::kind_named(&record.kind) {
                kind.inside(record)?;
            }
        }
        Ok(())
    }

    /// Whether the object of a mapping is a memory file: its content is in each image.
    pub(super) fn is_memory_file(&self, key: ObjectKey) -> bool {
        let number = self.numbers.get(&key);
        let file = number.and_then(|number| self.files.get(number));
        file.is_some_and(resource::files::is_memory_file)
    }

    /// Objects whose pages are saved.
    pub(super) fn saved(&self) -> impl Iterator<Item = (u64, &File)> {
        self.files.iter().map(|(id, file)| (*id, file))
    }
}

/// The key of the executable among mapped files, each with its path.
///
/// Device and inode decide. Some file systems (overlayfs, btrfs) report another device in `maps` than in stat(2): there,
/// inode and path decide.
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

/// Whether an opened file is certainly not the object of that key. File systems that number their devices otherwise than
/// the list of areas does, tell nothing.
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
        // A file of another file system with the same inode number is mapped first.
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
