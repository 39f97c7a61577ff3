//! A simulated subject that changes files at random, and records changes by the rules of a watch.
//!
//! A watch records the earlier state of a file in the undo log before the file changes.
//!
//! Owns: the list of records in the present epoch, random changes, and snapshots of the tree.
//! Invariants: a change is made only after its records were written.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use model::ByteCount;
use rustix::fs::FileType;

use super::disk::{Disk, ROOT, key_of};
use crate::error::Result;
use crate::key::{Attributes, Time};
use crate::log::{DirectoryId, InodeId, UndoLog};
use crate::rights::{RightsId, Touch};

/// Length of a page in this test, in bytes.
const PAGE: u64 = 4;
/// Maximum length of a file in bytes.
const SIZE_MAX: u64 = 40;
const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];

/// A snapshot of the tree. Each path has its mode, modification time, content or link target, and the first path of the
/// same inode.
pub type Picture = BTreeMap<PathBuf, (u32, Time, Vec<u8>, PathBuf)>;

/// A subject that changes files at random, and the records that its watch has made in the present epoch.
#[derive(Debug)]
pub struct FileSubject {
    pub(super) disk: Disk,
    pub(super) random: Rng,
    /// Whether names in directories that were created in this epoch are recorded as well.
    records_all: bool,
    directories: HashMap<u64, DirectoryId>,
    inodes: HashMap<u64, (InodeId, u64)>,
    names: HashSet<(u64, Vec<u8>)>,
    pages: HashSet<(u64, u64)>,
    whole: HashSet<u64>,
    linked: HashSet<u64>,
    created: HashSet<u64>,
    /// Whether a directory has moved, or a file has got a second name. A record contains one path, the one at its time.
    has_stale_paths: bool,
}

/// Returns a snapshot of the present tree.
pub fn picture(disk: &Disk) -> Picture {
    let (mut picture, mut first) = (Picture::new(), HashMap::new());
    let mut left = vec![(ROOT, PathBuf::from("/"))];
    while let Some((inode, path)) = left.pop() {
        let found = disk.inode(inode).unwrap();
        let first = first.entry(inode).or_insert_with(|| path.clone()).clone();
        let content = if found.attributes.link.is_empty() { found.data } else { found.attributes.link };
        picture.insert(path.clone(), (found.attributes.mode, found.attributes.modified, content, first));
        for (name, child) in found.names.iter().rev() {
            left.push((*child, path.join(OsStr::from_bytes(name))));
        }
    }
    picture
}

impl FileSubject {
    /// Returns a subject that has recorded nothing.
    pub fn new(disk: Disk, random: Rng) -> Self {
        let mut random = random;
        Self {
            disk,
            records_all: random.bool(),
            random,
            directories: HashMap::new(),
            inodes: HashMap::new(),
            names: HashSet::new(),
            pages: HashSet::new(),
            whole: HashSet::new(),
            linked: HashSet::new(),
            created: HashSet::new(),
            has_stale_paths: false,
        }
    }

    /// Discards the list of records, because a new epoch begins.
    pub fn forget(&mut self) {
        let (disk, random) = (self.disk.clone(), self.random.clone());
        let (records_all, has_stale_paths) = (self.records_all, self.has_stale_paths);
        *self = Self { records_all, has_stale_paths, ..Self::new(disk, random) };
    }

    /// Makes one random change, and records the change if a log exists. Some random choices change nothing.
    ///
    /// # Errors
    ///
    /// The change could not be recorded or made. A change that could not be recorded was not made.
    pub fn change(&mut self, log: &mut Option<UndoLog>) -> Result<()> {
        let directories = self.all_directories();
        let directory = directories[self.random.usize(..directories.len())];
        let other = directories[self.random.usize(..directories.len())];
        let name = NAMES[self.random.usize(..NAMES.len())];
        let other_name = NAMES[self.random.usize(..NAMES.len())];
        let found = self.disk.child(directory, name);
        let kind = found.map(|inode| self.disk.inode(inode).unwrap().attributes.kind());
        match (self.random.u8(..12), found, kind) {
            (0..=2, None, _) => self.create(log, directory, name, FileType::RegularFile),
            (3, None, _) => self.create(log, directory, name, FileType::Directory),
            (4, None, _) => self.create(log, directory, name, FileType::Symlink),
            (0..=3, Some(inode), Some(FileType::RegularFile)) => self.write(log, inode),
            (4, Some(inode), Some(FileType::RegularFile)) => self.truncate(log, inode),
            (5, Some(inode), Some(FileType::RegularFile)) => self.link(log, inode, other, other_name),
            (6, Some(inode), Some(_)) => self.chmod(log, inode),
            (7 | 8, Some(_), Some(_)) => self.rename(log, (directory, name), (other, other_name)),
            (9.., Some(inode), Some(_)) if self.disk.inode(inode).unwrap().names.is_empty() => {
                self.name(log, directory, name)?;
                self.disk.remove(directory, name)
            }
            _ => Ok(()),
        }
    }

    fn all_directories(&self) -> Vec<u64> {
        let mut found = vec![ROOT];
        let mut at = 0;
        while at < found.len() {
            for child in self.disk.inode(found[at]).unwrap().names.values() {
                if self.disk.inode(*child).unwrap().attributes.kind() == FileType::Directory {
                    found.push(*child);
                }
            }
            at += 1;
        }
        found
    }

    fn create(
        &mut self,
        log: &mut Option<UndoLog>,
        directory: u64,
        name: &[u8],
        kind: FileType,
    ) -> Result<()> {
        self.name(log, directory, name)?;
        let link = if kind == FileType::Symlink { b"somewhere".to_vec() } else { Vec::new() };
        let mode = kind.as_raw_mode() | if self.random.bool() { 0o644 } else { 0o755 };
        let inode = self.disk.create(directory, name, &Attributes { mode, link, ..Attributes::default() })?;
        self.created.insert(inode);
        Ok(())
    }

    fn write(&mut self, log: &mut Option<UndoLog>, inode: u64) -> Result<()> {
        let size = self.disk.inode(inode).unwrap().attributes.size;
        // The write appends, overwrites, or leaves a hole.
        let offset = if self.random.bool() { size } else { self.random.u64(..SIZE_MAX) };
        let length = self.random.u64(1..9);
        let byte = if self.random.u8(..4) == 0 { 0 } else { self.random.u8(b'a'..=b'z') };
        self.content(log, inode, offset, offset + length)?;
        self.disk.write_at(inode, offset, &vec![byte; length as usize])
    }

    fn truncate(&mut self, log: &mut Option<UndoLog>, inode: u64) -> Result<()> {
        let size = self.random.u64(..SIZE_MAX);
        self.content(log, inode, size, u64::MAX)?;
        self.disk.set_size(inode, size)
    }

    fn link(&mut self, log: &mut Option<UndoLog>, inode: u64, to: u64, name: &[u8]) -> Result<()> {
        if self.disk.child(to, name).is_some() {
            return Ok(());
        }
        self.has_stale_paths = true;
        self.name(log, to, name)?;
        self.disk.add_link(inode, to, name)
    }

    fn chmod(&mut self, log: &mut Option<UndoLog>, inode: u64) -> Result<()> {
        self.inode(log, inode)?;
        let mut attributes = self.disk.inode(inode).unwrap().attributes;
        if self.random.bool() {
            attributes.mode ^= 0o022;
        } else {
            // Programs that unpack an archive set this time.
            attributes.modified = Time { s: 500, ns: 0 };
        }
        self.disk.set_attributes(inode, &attributes)
    }

    fn rename(&mut self, log: &mut Option<UndoLog>, from: (u64, &[u8]), to: (u64, &[u8])) -> Result<()> {
        let inode = self.disk.child(from.0, from.1).unwrap();
        let is_directory =
            |inode: u64| self.disk.inode(inode).unwrap().attributes.kind() == FileType::Directory;
        if let Some(there) = self.disk.child(to.0, to.1) {
            let is_empty = self.disk.inode(there).unwrap().names.is_empty();
            if there == inode || is_directory(there) != is_directory(inode) || !is_empty {
                return Ok(());
            }
        }
        // The names are recorded before the rename, which may then fail.
        let moves_directory = is_directory(inode);
        self.has_stale_paths |= moves_directory;
        self.name(log, from.0, from.1)?;
        self.name(log, to.0, to.1)?;
        let replaces = true;
        match self.disk.rename_to(from, to, replaces) {
            // The rename would move a directory into itself.
            Err(crate::UndoError::Kernel(error)) if error.errno == sys::Errno::EINVAL => Ok(()),
            outcome => outcome,
        }
    }

    /// Replaces a random file that has one name by a copy, without records. Returns the path of the file. Does nothing if
    /// paths are stale.
    pub fn replace(&mut self) -> Result<Option<PathBuf>> {
        if self.has_stale_paths {
            return Ok(None);
        }
        let is_file = |inode: &u64| {
            let found = self.disk.inode(*inode).unwrap();
            found.attributes.kind() == FileType::RegularFile && found.links == 1
        };
        let mut files = Vec::new();
        for directory in self.all_directories() {
            let names = self.disk.inode(directory).unwrap().names.into_iter();
            files.extend(
                names.filter(|(_, inode)| is_file(inode)).map(|(name, inode)| (directory, name, inode)),
            );
        }
        let Some((directory, name, inode)) = self.random.choice(files) else { return Ok(None) };
        let (path, old) = (self.disk.path_of(inode), self.disk.inode(inode).unwrap());
        let above = self.disk.inode(directory).unwrap().attributes;
        self.disk.remove(directory, &name)?;
        let copy = self.disk.create(directory, &name, &old.attributes)?;
        self.disk.write_at(copy, 0, &old.data)?;
        self.disk.set_attributes(copy, &old.attributes)?;
        self.disk.set_attributes(directory, &above)?;
        Ok(Some(path))
    }

    /// Records a name before the name leads to another inode.
    fn name(&mut self, log: &mut Option<UndoLog>, directory: u64, name: &[u8]) -> Result<()> {
        let found = self.disk.child(directory, name);
        let is_known = self.created.contains(&directory) && !self.records_all;
        if !is_known && !self.names.contains(&(directory, name.to_vec())) {
            let before = match found {
                Some(inode) => self.inode(log, inode)?,
                None => None,
            };
            let id = self.directory(log, directory)?;
            if let (Some(log), Some(id)) = (log.as_mut(), id) {
                log.name(id, OsStr::from_bytes(name), before, RightsId::OWN)?;
            }
            self.names.insert((directory, name.to_vec()));
        }
        let Some(inode) = found else { return Ok(()) };
        let is_directory = self.disk.inode(inode).unwrap().attributes.kind() == FileType::Directory;
        if is_directory || self.created.contains(&inode) || self.linked.contains(&inode) {
            return Ok(());
        }
        if let (Some(id), Some(log)) = (self.inode(log, inode)?, log.as_mut()) {
            let is_file = self.disk.inode(inode).unwrap().attributes.kind() == FileType::RegularFile;
            // Preserve the inode by a hard link, or by a copy of the content. For a symbolic link, the recorded
            // attributes are sufficient.
            match (self.random.u8(..3) > 0, is_file) {
                (true, _) => {
                    let (_, link) = self.disk.keep(Some(inode))?;
                    log.linked(id, &link)?;
                }
                (false, true) if !self.whole.contains(&inode) => self.copy(log, id, inode)?,
                (false, _) => {}
            }
        }
        self.linked.insert(inode);
        Ok(())
    }

    fn directory(&mut self, log: &mut Option<UndoLog>, directory: u64) -> Result<Option<DirectoryId>> {
        let Some(log) = log else { return Ok(None) };
        if let Some(id) = self.directories.get(&directory) {
            return Ok(Some(*id));
        }
        let attributes = self.disk.inode(directory).unwrap().attributes;
        let id = log.directory(&key_of(directory), &attributes, &self.disk.path_of(directory))?;
        self.directories.insert(directory, id);
        Ok(Some(id))
    }

    /// Returns the id of an inode that existed when the epoch began. Records the inode if no record exists.
    fn inode(&mut self, log: &mut Option<UndoLog>, inode: u64) -> Result<Option<InodeId>> {
        let Some(log) = log.as_mut().filter(|_| !self.created.contains(&inode)) else { return Ok(None) };
        if let Some((id, _)) = self.inodes.get(&inode) {
            return Ok(Some(*id));
        }
        let attributes = self.attributes(inode);
        let id = log.inode(&key_of(inode), &attributes, &self.disk.path_of(inode), Touch::ANY, None)?;
        self.inodes.insert(inode, (id, attributes.size));
        Ok(Some(id))
    }

    /// Returns the attributes that a record contains.
    fn attributes(&self, inode: u64) -> Attributes {
        let found = self.disk.inode(inode).unwrap();
        let has_one_name = found.attributes.kind() == FileType::Directory || found.links == 1;
        Attributes { born: found.attributes.born.filter(|_| has_one_name), ..found.attributes }
    }

    /// Records content before the content changes.
    fn content(&mut self, log: &mut Option<UndoLog>, inode: u64, from: u64, to: u64) -> Result<()> {
        let Some(id) = self.inode(log, inode)? else { return Ok(()) };
        let size = self.inodes[&inode].1;
        let data = self.disk.inode(inode).unwrap().data;
        let (from, to) = (from / PAGE * PAGE, to.min(size));
        if from >= to || self.whole.contains(&inode) {
            return Ok(());
        }
        let Some(log) = log.as_mut() else { return Ok(()) };
        if self.random.u8(..4) == 0 {
            return self.copy(log, id, inode);
        }
        for page in (from..to).step_by(PAGE as usize) {
            let end = (page + PAGE).min(size).min(data.len() as u64);
            if page >= end || self.pages.contains(&(inode, page)) {
                continue;
            }
            let bytes = &data[page as usize..end as usize];
            if bytes.iter().all(|byte| *byte == 0) {
                log.hole(id, page, ByteCount(end - page))?;
            } else {
                log.range(id, page, bytes)?;
            }
            self.pages.insert((inode, page));
        }
        Ok(())
    }
}

impl FileSubject {
    /// Records a copy of the present content of an inode.
    fn copy(&mut self, log: &mut UndoLog, id: InodeId, inode: u64) -> Result<()> {
        let data = self.disk.inode(inode).unwrap().data;
        let (copy, path) = self.disk.keep(None)?;
        if !data.is_empty() {
            self.disk.write_at(copy, 0, &data)?;
        }
        log.whole_in(id, &path)?;
        self.whole.insert(inode);
        Ok(())
    }
}

/// Describes the difference of two snapshots, for a message.
pub fn difference(left: &Picture, right: &Picture) -> String {
    let paths: std::collections::BTreeSet<&PathBuf> = left.keys().chain(right.keys()).collect();
    let mut text = String::new();
    for path in paths.into_iter().filter(|path| left.get(*path) != right.get(*path)) {
        let shown = |picture: &Picture| format!("{:?}", picture.get(path as &Path));
        text += &format!("{}:\n  {}\n  {}\n", path.display(), shown(left), shown(right));
    }
    text
}
