//! A file system in memory that can simulate a kill or a power cut at any operation.
//!
//! Owns: inodes, directories, and the distinction between durable and pending changes.
//! Invariants: a kill keeps all completed operations, and perhaps the first bytes of a write in progress. A power cut
//! keeps the oldest pending changes of names and attributes, up to a random change. A power cut keeps each pending
//! write in full, in part or not at all. A synced change is never lost.
//! Does not: model a file system that reorders metadata. No file system that `undying` supports reorders metadata.

mod files;

pub(super) use files::Files;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use model::ByteCount;
use rustix::fs::FileType;
use sys::file_handle::FileHandle;
use sys::{Errno, Error};

use crate::back::files::{Entry, FileSystem, Status, Work};
use crate::error::Result;
use crate::key::{Attributes, FileKey, Time};
use crate::log::storage::{LogFile, Storage};

/// The number of the only device.
const DEVICE: u64 = 1;
/// Directories that exist from the beginning.
pub(super) const ROOT: u64 = 1;
pub(super) const LOG: u64 = 2;
pub(super) const KEPT: u64 = 3;
pub(super) const NEW: u64 = 4;
pub(super) const TRANSIT: u64 = 5;
pub(super) const ASIDE: u64 = 6;
const FIRST_FREE: u64 = 7;

pub(super) type Extended = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) attributes: Attributes,
    pub(super) links: u64,
    pub(super) changed: Time,
    pub(super) data: Vec<u8>,
    pub(super) names: BTreeMap<Vec<u8>, u64>,
}

type Inodes = BTreeMap<u64, Inode>;

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
struct State {
    now: Inodes,
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
    models_power: bool,
    number: u64,
}

/// The disk. All clones share one state.
#[derive(Clone, Debug)]
pub(super) struct Disk(Arc<Mutex<State>>);

#[derive(Debug)]
struct SimulatedFile {
    disk: Disk,
    inode: u64,
}

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

fn ended() -> crate::UndoError {
    failed("go on after the end of the program", Errno(4))
}

fn failed(operation: &'static str, errno: Errno) -> crate::UndoError {
    Error::new(operation, errno).into()
}

pub(super) fn key_of(inode: u64) -> FileKey {
    FileKey { device: DEVICE, inode, handle: FileHandle { kind: 1, bytes: inode.to_le_bytes().to_vec() } }
}

impl Disk {
    pub(super) fn new(seed: u64, models_power: bool) -> Self {
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
            models_power,
            number: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Sets the number of operations until the program is killed. `None` means that the program is not killed.
    pub(super) fn end_after(&self, operations: Option<u64>) {
        let mut state = self.state();
        (state.left, state.is_dead) = (operations, false);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    pub(super) fn cut_power(&self) {
        self.state().cut_power();
    }

    pub(super) fn sync_all(&self) {
        self.state().sync(None);
    }

    pub(super) fn now(&self) -> Time {
        let mut state = self.state();
        state.clock += 1;
        state.time()
    }

    pub(super) fn inode(&self, inode: u64) -> Option<Inode> {
        self.state().now.get(&inode).cloned()
    }

    pub(super) fn child(&self, directory: u64, name: &[u8]) -> Option<u64> {
        self.state().child(directory, name)
    }

    /// Returns the content of all regular files below a directory, by inode number.
    pub(super) fn files_below(&self, directory: u64) -> BTreeMap<u64, Vec<u8>> {
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

    pub(super) fn names_of(&self, directory: u64) -> Vec<Vec<u8>> {
        self.state().now[&directory].names.keys().cloned().collect()
    }

    /// Creates an inode with a name.
    pub(super) fn create(&self, directory: u64, name: &[u8], attributes: &Attributes) -> Result<u64> {
        let mut state = self.state();
        state.tick()?;
        if state.child(directory, name).is_some() {
            return Err(failed("create", Errno::EEXIST));
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

    pub(super) fn write_at(&self, inode: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.write(inode, offset, bytes)?;
        state.touch(inode, true);
        Ok(())
    }

    pub(super) fn set_size(&self, inode: u64, size: u64) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        state.apply(Change::Size(inode, size));
        state.touch(inode, true);
        Ok(())
    }

    pub(super) fn add_link(&self, inode: u64, directory: u64, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        if state.child(directory, name).is_some() {
            return Err(failed("link", Errno::EEXIST));
        }
        state.set_name(directory, name, Some(inode));
        state.add_links(inode, 1);
        Ok(())
    }

    pub(super) fn remove(&self, directory: u64, name: &[u8]) -> Result<()> {
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
    pub(super) fn rename_to(
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

    pub(super) fn set_attributes(&self, inode: u64, attributes: &Attributes) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        let time = state.time();
        state.apply(Change::Attributes(inode, attributes.clone(), time));
        Ok(())
    }

    /// Creates a name in the keep directory, which contains hard links and copies of earlier files. The name is a hard
    /// link of `inode`, or an empty file for a copy.
    pub(super) fn keep(&self, inode: Option<u64>) -> Result<(u64, PathBuf)> {
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

fn parent_of(inodes: &Inodes, directory: u64) -> Option<(u64, Vec<u8>)> {
    inodes.iter().find_map(|(number, inode)| {
        let (name, _) = inode.names.iter().find(|(_, child)| **child == directory)?;
        Some((*number, name.clone()))
    })
}

fn kept_name(path: &Path) -> Vec<u8> {
    path.file_name().unwrap().as_encoded_bytes().to_vec()
}

impl Storage for Disk {
    fn names(&self) -> Result<Vec<String>> {
        let state = self.state();
        Ok(state.now[&LOG].names.keys().map(|name| String::from_utf8(name.clone()).unwrap()).collect())
    }

    fn create(&self, name: &str) -> Result<Box<dyn LogFile>> {
        let inode = Self::create(self, LOG, name.as_bytes(), &Attributes::default())?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), inode }))
    }

    fn open(&self, name: &str) -> Result<Box<dyn LogFile>> {
        let Some(inode) = self.child(LOG, name.as_bytes()) else {
            return Err(failed("open", Errno::ENOENT));
        };
        Ok(Box::new(SimulatedFile { disk: self.clone(), inode }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.rename_to((LOG, from.as_bytes()), (LOG, to.as_bytes()), true)
    }

    fn remove(&self, name: &str) -> Result<()> {
        match self.child(LOG, name.as_bytes()) {
            Some(_) => Self::remove(self, LOG, name.as_bytes()),
            None => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state();
        state.tick()?;
        // A journal of metadata keeps the order of changes, so that all earlier changes of metadata become durable.
        state.sync(Some(LOG));
        Ok(())
    }

    fn boot(&self) -> Result<String> {
        Ok(format!("boot {}", self.state().boot))
    }

    fn now(&self) -> Time {
        Self::now(self)
    }

    fn drop_kept(&self, path: &Path) -> Result<()> {
        match self.child(KEPT, &kept_name(path)) {
            Some(_) => Self::remove(self, KEPT, &kept_name(path)),
            None => Ok(()),
        }
    }

    fn kept_bytes(&self, path: &Path) -> Result<ByteCount> {
        let inode = self.child(KEPT, &kept_name(path)).unwrap();
        Ok(ByteCount(self.inode(inode).unwrap().attributes.size))
    }

    fn sweep_kept(&self, named: &HashSet<PathBuf>) -> Result<()> {
        let names: Vec<_> = self.state().now[&KEPT].names.keys().cloned().collect();
        let path = |name: &[u8]| Path::new("/kept").join(std::str::from_utf8(name).unwrap());
        for name in names.iter().filter(|name| !named.contains(&path(name))) {
            Self::remove(self, KEPT, name)?;
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/undo")
    }
}

impl LogFile for SimulatedFile {
    fn write(&self, offset: u64, parts: [&[u8]; 2]) -> Result<()> {
        self.disk.state().write(self.inode, offset, &parts.concat())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let state = self.disk.state();
        let data = &state.now[&self.inode].data;
        let from = data.get(offset as usize..).unwrap_or_default();
        let length = from.len().min(buffer.len());
        buffer[..length].copy_from_slice(&from[..length]);
        Ok(length)
    }

    fn truncate(&self, length: u64) -> Result<()> {
        let mut state = self.disk.state();
        state.tick()?;
        state.apply(Change::Size(self.inode, length));
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.disk.state().now[&self.inode].data.len() as u64)
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.disk.state();
        state.tick()?;
        state.sync(Some(self.inode));
        Ok(())
    }
}
