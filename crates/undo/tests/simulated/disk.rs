//! A file system in memory that can simulate a kill or a power cut at any operation.
//!
//! Owns: inodes, directories, and the distinction between durable and pending changes.
//! Invariants: a kill keeps all completed operations, and perhaps the first bytes of a write in progress. A power cut
//! keeps the oldest pending changes of names and attributes, up to a random change. A power cut keeps each pending
//! write in full, in part or not at all. A synced change is never lost.
//! Does not: model a file system that reorders metadata. No file system that `undying` supports reorders metadata.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::FileType;
use sys::file_handle::FileHandle;
use sys::{Errno, Error};

use crate::error::Result;
use crate::key::{Attributes, FileKey, Time};

/// The number of the only device.
pub(crate) const DEVICE: u64 = 1;
/// Directories that exist from the beginning.
pub(crate) const ROOT: u64 = 1;
pub(crate) const LOG: u64 = 2;
pub(crate) const KEPT: u64 = 3;
pub(crate) const NEW: u64 = 4;
pub(crate) const TRANSIT: u64 = 5;
pub(crate) const ASIDE: u64 = 6;
const FIRST_FREE: u64 = 7;

#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    pub(crate) attributes: Attributes,
    pub(crate) links: u64,
    pub(crate) changed: Time,
    pub(crate) data: Vec<u8>,
    pub(crate) names: BTreeMap<Vec<u8>, u64>,
}

pub(super) type Inodes = BTreeMap<u64, Inode>;

/// One change of the disk.
#[derive(Clone, Debug)]
enum Change {
    Create(u64, Inode),
    Name(u64, Vec<u8>, Option<u64>),
    Links(u64, u64),
    Attributes(u64, Attributes, Time),
    Size(u64, u64),
    Write(u64, u64, Vec<u8>),
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) now: Inodes,
    durable: Inodes,
    /// Changes that are not durable, each with the time of its operation. A power cut keeps either all or no metadata
    /// changes of an operation.
    pending: Vec<(i64, Change)>,
    random: fastrand::Rng,
    next: u64,
    clock: i64,
    boot: u64,
    /// Number of operations until the program is killed; `None` for no kill.
    left: Option<u64>,
    is_dead: bool,
    is_full: bool,
    models_power: bool,
    number: u64,
}

/// The disk. All clones share one state.
#[derive(Clone, Debug)]
pub struct Disk(pub(super) Arc<Mutex<State>>);

impl State {
    /// Counts an operation that changes the disk. Fails if the program is dead.
    fn tick(&mut self) -> Result<()> {
        self.clock += 1;
        match self.left {
            Some(0) => (self.left, self.is_dead) = (None, true),
            Some(left) => self.left = Some(left - 1),
            None => {}
        }
        if self.is_dead { Err(ended()) } else { Ok(()) }
    }

    fn time(&self) -> Time {
        Time { s: self.clock, ns: 0 }
    }

    fn apply(&mut self, change: Change) {
        apply(&mut self.now, &change);
        // Only power cuts use pending changes.
        if self.models_power {
            self.pending.push((self.clock, change));
        }
    }

    /// Writes bytes. Writes only a random first part if the program is killed at this operation.
    fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        let was_dead = self.is_dead;
        let outcome = self.tick();
        let length = self.now.get(&inode).map_or(0, |found| found.data.len());
        if outcome.is_ok() && self.is_full && offset as usize + bytes.len() > length {
            return Err(full());
        }
        let length = match outcome {
            Ok(()) => bytes.len(),
            Err(_) if was_dead => 0,
            Err(_) => self.random.usize(..=bytes.len()),
        };
        if length > 0 {
            self.apply(Change::Write(inode, offset, bytes[..length].to_vec()));
        }
        outcome
    }

    /// Makes all metadata changes durable, and writes of one inode or of all inodes. If the size of an inode was set,
    /// writes of this inode also become durable.
    fn sync(&mut self, inode: Option<u64>) {
        let cut: HashSet<u64> = self
            .pending
            .iter()
            .filter_map(|(_, change)| match change {
                Change::Size(inode, _) => Some(*inode),
                _ => None,
            })
            .collect();
        let mut left = Vec::new();
        for (time, change) in std::mem::take(&mut self.pending) {
            match &change {
                Change::Write(other, ..)
                    if inode.is_some_and(|inode| inode != *other) && !cut.contains(other) =>
                {
                    left.push((time, change));
                }
                _ => apply(&mut self.durable, &change),
            }
        }
        self.pending = left;
    }

    fn cut_power(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let first_lost = self.random.usize(..=pending.len());
        let kept = pending.get(first_lost).map_or(i64::MAX, |(time, _)| *time);
        for (time, change) in pending {
            match change {
                Change::Write(inode, offset, bytes) => {
                    let length = match self.random.u8(..4) {
                        0 => 0,
                        1 => self.random.usize(..=bytes.len()),
                        _ => bytes.len(),
                    };
                    if length > 0 {
                        let part = bytes[..length].to_vec();
                        apply(&mut self.durable, &Change::Write(inode, offset, part));
                    }
                }
                change if time < kept => apply(&mut self.durable, &change),
                _ => {}
            }
        }
        // An inode without a name is not in `durable`.
        self.now = self.durable.clone();
        self.boot += 1;
    }

    fn child(&self, directory: u64, name: &[u8]) -> Option<u64> {
        self.now.get(&directory)?.names.get(name).copied()
    }

    fn touch(&mut self, inode: u64, is_modified: bool) {
        let time = self.time();
        let Some(found) = self.now.get(&inode) else { return };
        let mut attributes = found.attributes.clone();
        if is_modified {
            attributes.modified = time;
        }
        self.apply(Change::Attributes(inode, attributes, time));
    }

    fn set_name(&mut self, directory: u64, name: &[u8], inode: Option<u64>) {
        self.apply(Change::Name(directory, name.to_vec(), inode));
        self.touch(directory, true);
    }

    fn add_links(&mut self, inode: u64, by: i64) {
        let links = self.now[&inode].links.saturating_add_signed(by);
        self.apply(Change::Links(inode, links));
        self.touch(inode, false);
    }
}

fn apply(inodes: &mut Inodes, change: &Change) {
    match change {
        Change::Create(number, inode) => drop(inodes.insert(*number, inode.clone())),
        Change::Name(directory, name, inode) => {
            if let Some(directory) = inodes.get_mut(directory) {
                match inode {
                    Some(inode) => directory.names.insert(name.clone(), *inode),
                    None => directory.names.remove(name),
                };
            }
        }
        Change::Links(inode, links) => {
            if *links == 0 {
                inodes.remove(inode);
            } else if let Some(inode) = inodes.get_mut(inode) {
                inode.links = *links;
            }
        }
        Change::Attributes(number, attributes, time) => {
            if let Some(inode) = inodes.get_mut(number) {
                let size = inode.attributes.size;
                inode.attributes = Attributes { size, ..attributes.clone() };
                inode.changed = *time;
            }
        }
        Change::Size(inode, size) => {
            if let Some(inode) = inodes.get_mut(inode) {
                inode.data.resize(*size as usize, 0);
                inode.attributes.size = *size;
            }
        }
        Change::Write(inode, offset, bytes) => {
            if let Some(inode) = inodes.get_mut(inode) {
                let end = *offset as usize + bytes.len();
                inode.data.resize(inode.data.len().max(end), 0);
                inode.data[*offset as usize..end].copy_from_slice(bytes);
                inode.attributes.size = inode.data.len() as u64;
            }
        }
    }
}

fn full() -> crate::UndoError {
    failed("write", Errno::ENOSPC)
}

fn ended() -> crate::UndoError {
    failed("go on after the end of the program", Errno(4))
}

pub(super) fn failed(operation: &'static str, errno: Errno) -> crate::UndoError {
    Error::new(operation, errno).into()
}

pub(crate) fn key_of(inode: u64) -> FileKey {
    FileKey { device: DEVICE, inode, handle: FileHandle { kind: 1, bytes: inode.to_le_bytes().to_vec() } }
}

impl Disk {
    /// Returns an empty disk. Without `models_power`, changes are durable at once.
    pub fn new(seed: u64, models_power: bool) -> Self {
        let attributes =
            Attributes { mode: FileType::Directory.as_raw_mode() | 0o755, ..Attributes::default() };
        let directory = Inode { attributes, links: 1, ..Inode::default() };
        let now: Inodes = (ROOT..FIRST_FREE).map(|inode| (inode, directory.clone())).collect();
        Self(Arc::new(Mutex::new(State {
            durable: now.clone(),
            now,
            pending: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
            next: FIRST_FREE,
            clock: 1000,
            boot: 0,
            left: None,
            is_dead: false,
            is_full: false,
            models_power,
            number: 0,
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Sets the number of operations until the program is killed. `None` means that the program is not killed.
    pub fn end_after(&self, operations: Option<u64>) {
        let mut state = self.state();
        (state.left, state.is_dead) = (operations, false);
    }

    /// Reports whether the program was killed.
    pub fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    /// Cuts the power and restores it: each pending change is kept, kept in part, or lost.
    pub fn cut_power(&self) {
        self.state().cut_power();
    }

    /// Makes all changes durable.
    pub fn sync_all(&self) {
        self.state().sync(None);
    }

    /// Returns the time of the next change.
    pub fn now(&self) -> Time {
        let mut state = self.state();
        state.clock += 1;
        state.time()
    }

    pub(crate) fn inode(&self, inode: u64) -> Option<Inode> {
        self.state().now.get(&inode).cloned()
    }

    pub(crate) fn child(&self, directory: u64, name: &[u8]) -> Option<u64> {
        self.state().child(directory, name)
    }

    /// Sets whether the disk is full. No file can then grow, and no file and no link can be created.
    pub fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    pub(super) fn boot(&self) -> String {
        format!("boot {}", self.state().boot)
    }

    pub(super) fn write(&self, inode: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        self.state().write(inode, offset, bytes)
    }

    pub(super) fn truncate(&self, inode: u64, length: u64) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        state.apply(Change::Size(inode, length));
        Ok(())
    }

    pub(super) fn sync(&self, inode: Option<u64>) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        state.sync(inode);
        Ok(())
    }

    /// Returns the content of all regular files below a directory, by inode number.
    #[cfg(test)]
    pub(crate) fn files_below(&self, directory: u64) -> BTreeMap<u64, Vec<u8>> {
        let state = self.state();
        let (mut found, mut left) = (BTreeMap::new(), vec![directory]);
        while let Some(inode) = left.pop() {
            let there = &state.now[&inode];
            left.extend(there.names.values());
            if there.attributes.kind() == FileType::RegularFile {
                found.insert(inode, there.data.clone());
            }
        }
        found
    }

    pub(crate) fn names_of(&self, directory: u64) -> Vec<Vec<u8>> {
        self.state().now[&directory].names.keys().cloned().collect()
    }

    /// Returns a path of an inode. The path is empty if no name in the tree leads to the inode.
    pub(super) fn path_of(&self, inode: u64) -> PathBuf {
        let state = self.state();
        let mut left = vec![(ROOT, PathBuf::from("/"))];
        while let Some((found, path)) = left.pop() {
            if found == inode {
                return path;
            }
            for (name, child) in state.now[&found].names.iter().rev() {
                left.push((*child, path.join(std::str::from_utf8(name).unwrap())));
            }
        }
        PathBuf::new()
    }

    /// Creates an inode with a name.
    pub(crate) fn create(&self, directory: u64, name: &[u8], attributes: &Attributes) -> Result<u64> {
        let mut state = self.state();
        state.tick()?;
        if state.child(directory, name).is_some() {
            return Err(failed("create", Errno::EEXIST));
        }
        if state.is_full {
            return Err(full());
        }
        let inode = state.next;
        state.next += 1;
        let time = state.time();
        // The clock may have been set back after the creation of an inode.
        let ahead = if state.random.u8(..8) == 0 { 10_000 } else { 0 };
        let born = Some(Time { s: time.s + ahead, ..time });
        let attributes = Attributes { modified: time, born, size: 0, ..attributes.clone() };
        let made = Inode { attributes, links: 1, changed: time, ..Inode::default() };
        state.apply(Change::Create(inode, made));
        state.set_name(directory, name, Some(inode));
        Ok(inode)
    }

    pub(crate) fn write_at(&self, inode: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.write(inode, offset, bytes)?;
        state.touch(inode, true);
        Ok(())
    }

    pub(crate) fn set_size(&self, inode: u64, size: u64) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        state.apply(Change::Size(inode, size));
        state.touch(inode, true);
        Ok(())
    }

    pub(crate) fn add_link(&self, inode: u64, directory: u64, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        if state.child(directory, name).is_some() {
            return Err(failed("link", Errno::EEXIST));
        }
        if state.is_full {
            return Err(full());
        }
        state.set_name(directory, name, Some(inode));
        state.add_links(inode, 1);
        Ok(())
    }

    pub(crate) fn remove(&self, directory: u64, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        let Some(inode) = state.child(directory, name) else {
            return Err(failed("remove", Errno::ENOENT));
        };
        if !state.now[&inode].names.is_empty() {
            return Err(failed("remove", Errno(39)));
        }
        state.set_name(directory, name, None);
        state.add_links(inode, -1);
        Ok(())
    }

    /// Works like rename(2). Without `replaces`, works like renameat2(2) with RENAME_NOREPLACE.
    pub(crate) fn rename_to(
        &self,
        (from, name): (u64, &[u8]),
        (to, to_name): (u64, &[u8]),
        replaces: bool,
    ) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        let Some(inode) = state.child(from, name) else { return Err(failed("rename", Errno::ENOENT)) };
        let replaced = state.child(to, to_name);
        if replaced == Some(inode) {
            return Ok(());
        }
        if replaced.is_some() && !replaces {
            return Err(failed("rename", Errno::EEXIST));
        }
        // A directory cannot be moved into itself.
        let mut above = Some(to);
        while let Some(directory) = above {
            if directory == inode {
                return Err(failed("rename", Errno::EINVAL));
            }
            above = parent_of(&state.now, directory).map(|(above, _)| above);
        }
        state.set_name(from, name, None);
        state.set_name(to, to_name, Some(inode));
        state.touch(inode, false);
        if let Some(replaced) = replaced {
            state.add_links(replaced, -1);
        }
        Ok(())
    }

    pub(crate) fn set_attributes(&self, inode: u64, attributes: &Attributes) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        let time = state.time();
        state.apply(Change::Attributes(inode, attributes.clone(), time));
        Ok(())
    }

    /// Creates a name in the keep directory, which contains hard links and copies of earlier files. The name is a hard
    /// link of `inode`, or an empty file for a copy.
    pub(crate) fn keep(&self, inode: Option<u64>) -> Result<(u64, PathBuf)> {
        let name = {
            let mut state = self.state();
            state.number += 1;
            format!("k{}", state.number)
        };
        let path = Path::new("/kept").join(&name);
        match inode {
            Some(inode) => self.add_link(inode, KEPT, name.as_bytes()).map(|()| (inode, path)),
            None => {
                let mode = FileType::RegularFile.as_raw_mode() | 0o600;
                let made =
                    self.create(KEPT, name.as_bytes(), &Attributes { mode, ..Attributes::default() })?;
                Ok((made, path))
            }
        }
    }
}

pub(super) fn parent_of(inodes: &Inodes, directory: u64) -> Option<(u64, Vec<u8>)> {
    inodes.iter().find_map(|(number, inode)| {
        let (name, _) = inode.names.iter().find(|(_, child)| **child == directory)?;
        Some((*number, name.clone()))
    })
}

pub(super) fn kept_name(path: &Path) -> Vec<u8> {
    path.file_name().unwrap().as_encoded_bytes().to_vec()
}
