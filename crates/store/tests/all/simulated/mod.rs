//! A simulated disk in memory. A power cut loses unsynced data, as on a real disk.
//!
//! Owns: the durable content and the visible content; power cuts at a given step; a full disk.
//! Invariants: the same seed and steps give the same result. Synced data is never lost, unless the test enables a
//! `Lie`. Nothing else is guaranteed: unsynced writes survive in any subset and order, torn at 512 bytes. Unsynced
//! names survive in any subset.
//! Does not: simulate time or the journal of a file system. A journal would only add guarantees.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;
use model::ByteCount;
use store::{Entry, Kind, Lock, Medium, NewFile, PageFile, PageSource, Writes};
use sys::direct_io::Rings;
use sys::page_buffer::PageBuffer;
use sys::{Errno, Error, Result};

use undying_store as store;

const SECTOR: usize = 512;
const ROOT: usize = 0;

/// A fault at a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A power cut. The step of the fault may or may not take effect, and no later step does.
    PowerCut,
    /// The program that uses the disk is killed. The step of the fault may or may not take effect, and no later step does.
    /// The disk keeps all changes.
    Kill,
    /// The disk is full from this step on.
    Full,
}

/// Syncs that the disk reports as successful without making data durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Lie {
    /// No sync: the disk is honest.
    #[default]
    Honest,
    /// Syncs of files.
    Files,
    /// Syncs of directories.
    Directories,
}

/// A simulated disk.
#[derive(Debug)]
pub(crate) struct Disk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    nodes: Vec<Node>,
    held: HashSet<usize>,
    steps: u64,
    fault: Option<(u64, Fault)>,
    random: Rng,
    lie: Lie,
}

#[derive(Clone, Debug)]
enum Node {
    File { now: Vec<u8>, durable: Vec<u8>, pending: Vec<Change> },
    Directory { now: Names, durable: Names, pending: Vec<Renaming> },
}

type Names = BTreeMap<String, usize>;

/// Names that change together. Each name then refers to a node, or is removed.
type Renaming = Vec<(String, Option<usize>)>;

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let root = Node::Directory { now: Names::new(), durable: Names::new(), pending: Vec::new() };
        let state = State { nodes: vec![root], random: Rng::with_seed(seed), ..State::default() };
        Arc::new(Self { state: Arc::new(Mutex::new(state)) })
    }

    /// Returns a new disk with the same content and another seed.
    pub(crate) fn fork(&self, seed: u64) -> Arc<Self> {
        let state =
            State { nodes: self.state().nodes.clone(), random: Rng::with_seed(seed), ..State::default() };
        Arc::new(Self { state: Arc::new(Mutex::new(state)) })
    }

    /// Plans a fault that occurs after `steps` more steps.
    pub(crate) fn plan(&self, steps: u64, fault: Fault) {
        let mut state = self.state();
        state.fault = Some((state.steps + steps, fault));
    }

    pub(crate) fn lie(&self, lie: Lie) {
        self.state().lie = lie;
    }

    /// Reports whether the planned fault has occurred.
    pub(crate) fn hit(&self) -> bool {
        let state = self.state();
        state.fault.is_some_and(|(at, _)| state.steps > at)
    }

    /// Returns the number of steps until now.
    pub(crate) fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Restores the power. Each unsynced change is preserved, lost, or preserved in part.
    pub(crate) fn restart(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        // A few simulated disks preserve all unsynced changes, or lose all of them. Most simulated disks preserve a
        // random subset.
        let keep = state.random.u64(..8);
        for node in &mut state.nodes {
            node.settle(&mut state.random, keep);
        }
        state.held.clear();
        state.fault = None;
    }

    /// Ends the fault, so that the disk is no longer full, and can be used by the next program.
    pub(crate) fn heal(&self) {
        self.state().fault = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Node {
    /// Decides randomly which unsynced changes survive.
    fn settle(&mut self, random: &mut Rng, keep: u64) {
        let survives = |random: &mut Rng| match keep {
            0 => false,
            1 => true,
            _ => random.bool(),
        };
        match self {
            Self::File { now, durable, pending } => {
                random.shuffle(pending);
                for change in pending.drain(..) {
                    match change {
                        Change::Length(length) if survives(random) => durable.resize(length, 0),
                        Change::Length(_) => {}
                        Change::Write(offset, bytes) => {
                            for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                                if survives(random) {
                                    put(durable, offset + number * SECTOR, sector);
                                }
                            }
                        }
                    }
                }
                now.clone_from(durable);
            }
            Self::Directory { now, durable, pending } => {
                for names in pending.drain(..) {
                    if survives(random) {
                        apply(durable, &names);
                    }
                }
                now.clone_from(durable);
            }
        }
    }

    fn sync(&mut self) {
        match self {
            Self::File { now, durable, pending } => {
                durable.clone_from(now);
                pending.clear();
            }
            Self::Directory { now, durable, pending } => {
                durable.clone_from(now);
                pending.clear();
            }
        }
    }
}

impl State {
    /// Counts a step. Returns whether the step takes effect, and its result.
    fn step(&mut self, needs_space: bool, path: &Path) -> (bool, Result<()>) {
        let now = self.steps;
        self.steps += 1;
        match self.fault {
            Some((at, Fault::PowerCut | Fault::Kill)) if now >= at => {
                let begun = now == at && self.random.bool();
                (begun, Err(Error::path("reach", path, rustix::io::Errno::IO)))
            }
            Some((at, Fault::Full)) if now >= at && needs_space => {
                (false, Err(Error::path("write", path, Errno::ENOSPC)))
            }
            _ => (true, Ok(())),
        }
    }

    fn find(&self, path: &Path) -> Option<usize> {
        path.components().filter(|part| matches!(part, Component::Normal(_))).try_fold(ROOT, |at, part| {
            match &self.nodes[at] {
                Node::Directory { now, .. } => now.get(part.as_os_str().to_str()?).copied(),
                Node::File { .. } => None,
            }
        })
    }

    fn found(&self, path: &Path) -> Result<usize> {
        self.find(path).ok_or_else(|| Error::path("find", path, Errno::ENOENT))
    }

    fn names(&mut self, path: &Path) -> Result<(&mut Names, &mut Vec<Renaming>)> {
        let at = self.found(path)?;
        match &mut self.nodes[at] {
            Node::Directory { now, pending, .. } => Ok((now, pending)),
            Node::File { .. } => Err(Error::path("enter", path, rustix::io::Errno::NOTDIR)),
        }
    }

    fn rename_entries(&mut self, directory: &Path, names: Renaming) -> Result<()> {
        let (now, pending) = self.names(directory)?;
        apply(now, &names);
        pending.push(names);
        Ok(())
    }

    fn create(&mut self, path: &Path, node: Node) -> Result<usize> {
        let (begun, result) = self.step(true, path);
        if !begun {
            return result.map(|()| 0);
        }
        if self.find(path).is_some() {
            return Err(Error::path("create", path, Errno::EEXIST));
        }
        let number = self.nodes.len();
        self.rename_entries(above(path), vec![(last(path), Some(number))])?;
        self.nodes.push(node);
        result.map(|()| number)
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        let (begun, result) = self.step(false, path);
        if begun {
            self.found(path)?;
            self.rename_entries(above(path), vec![(last(path), None)])?;
        }
        result
    }

    fn change(&mut self, file: usize, path: &Path, change: Change) -> Result<()> {
        let (begun, result) = self.step(true, path);
        if begun && let Node::File { now, pending, .. } = &mut self.nodes[file] {
            match &change {
                Change::Write(offset, bytes) => put(now, *offset, bytes),
                Change::Length(length) => now.resize(*length, 0),
            }
            pending.push(change);
        }
        result
    }

    fn sync(&mut self, node: usize, path: &Path) -> Result<()> {
        let (_, result) = self.step(true, path);
        let lied = match self.nodes[node] {
            Node::File { .. } => self.lie == Lie::Files,
            Node::Directory { .. } => self.lie == Lie::Directories,
        };
        // An interrupted sync may be partly done; `restart` decides which changes survive.
        if result.is_ok() && !lied {
            self.nodes[node].sync();
        }
        result
    }
}

impl Medium for Disk {
    fn create_directory(&self, path: &Path) -> Result<()> {
        let node = Node::Directory { now: Names::new(), durable: Names::new(), pending: Vec::new() };
        self.state().create(path, node).map(drop)
    }

    fn create_file(&self, path: &Path) -> Result<Box<dyn NewFile>> {
        Ok(Box::new(self.new_file(path)?))
    }

    fn create_pages(&self, path: &Path, _: Writes) -> Result<Box<dyn PageFile>> {
        Ok(Box::new(self.new_file(path)?))
    }

    fn create_log(&self, path: &Path, length: ByteCount, _: &Rings) -> Result<Box<dyn PageFile>> {
        let file = self.new_file(path)?;
        self.state().change(file.node, path, Change::Length(length.0 as usize))?;
        Ok(Box::new(file))
    }

    fn open_pages(&self, path: &Path) -> store::Result<Box<dyn PageSource>> {
        let state = self.state();
        match &state.nodes[state.found(path)?] {
            Node::File { now, .. } => Ok(Box::new(Bytes(now.clone()))),
            Node::Directory { .. } => Err(Error::path("open", path, rustix::io::Errno::ISDIR).into()),
        }
    }

    fn read_file(&self, path: &Path, limit: ByteCount) -> store::Result<Vec<u8>> {
        let state = self.state();
        match &state.nodes[state.found(path)?] {
            Node::File { now, .. } => Ok(now[..now.len().min(limit.0 as usize)].to_vec()),
            Node::Directory { .. } => Err(Error::path("read", path, rustix::io::Errno::ISDIR).into()),
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<Entry>> {
        let mut state = self.state();
        let names = state.names(path)?.0.clone();
        let entry = |(name, node): (String, usize)| Entry {
            name,
            is_directory: matches!(state.nodes[node], Node::Directory { .. }),
        };
        Ok(names.into_iter().map(entry).collect())
    }

    fn kind(&self, path: &Path) -> Result<Option<Kind>> {
        let state = self.state();
        Ok(state.find(path).map(|node| match state.nodes[node] {
            Node::Directory { .. } => Kind::Directory { mode: 0o700 },
            Node::File { .. } => Kind::File,
        }))
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        let mut state = self.state();
        let node = state.found(path)?;
        state.sync(node, path)
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        let mut state = self.state();
        let node = state.found(path)?;
        state.sync(node, path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.state();
        let (begun, result) = state.step(false, from);
        if begun {
            let node = state.found(from)?;
            if let Some(there) = state.find(to)
                && !matches!(&state.nodes[there], Node::Directory { now, .. } if now.is_empty())
            {
                return Err(Error::path("rename to", to, rustix::io::Errno::NOTEMPTY));
            }
            assert_eq!(above(from), above(to), "the model renames within one directory");
            state.rename_entries(above(to), vec![(last(from), None), (last(to), Some(node))])?;
        }
        result
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.state();
        let (begun, result) = state.step(true, to);
        if begun {
            let node = state.found(from)?;
            if state.find(to).is_some() {
                return Err(Error::path("link to", to, Errno::EEXIST));
            }
            state.rename_entries(above(to), vec![(last(to), Some(node))])?;
        }
        result
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.state().remove(path)
    }

    fn remove_directory(&self, path: &Path) -> Result<()> {
        if !self.list(path)?.is_empty() {
            return Err(Error::path("remove", path, rustix::io::Errno::NOTEMPTY));
        }
        self.state().remove(path)
    }

    fn lock(&self, path: &Path) -> Result<Option<Box<dyn Lock>>> {
        let mut state = self.state();
        let Some(node) = state.find(path) else { return Ok(None) };
        if !state.held.insert(node) {
            return Ok(None);
        }
        Ok(Some(Box::new(Held { state: Arc::clone(&self.state), node })))
    }
}

impl Disk {
    fn new_file(&self, path: &Path) -> Result<OpenFile> {
        let node = Node::File { now: Vec::new(), durable: Vec::new(), pending: Vec::new() };
        let node = self.state().create(path, node)?;
        let (state, path) = (Arc::clone(&self.state), path.to_path_buf());
        Ok(OpenFile { state, path, node, end: 0, done: Vec::new() })
    }
}

#[derive(Debug)]
struct OpenFile {
    state: Arc<Mutex<State>>,
    path: PathBuf,
    node: usize,
    end: usize,
    done: Vec<PageBuffer>,
}

impl NewFile for OpenFile {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let change = Change::Write(self.end, bytes.to_vec());
        self.end += bytes.len();
        self.state.lock().unwrap().change(self.node, &self.path, change)
    }

    fn start_sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.state.lock().unwrap().sync(self.node, &self.path)
    }
}

impl PageFile for OpenFile {
    fn submit(&mut self, buffer: PageBuffer, part: Range<ByteCount>, offset: ByteCount) -> Result<()> {
        let bytes = buffer[part.start.0 as usize..part.end.0 as usize].to_vec();
        let change = Change::Write(offset.0 as usize, bytes);
        self.state.lock().unwrap().change(self.node, &self.path, change)?;
        self.done.push(buffer);
        Ok(())
    }

    fn rewrite(&mut self, bytes: &[u8], offset: ByteCount) -> Result<()> {
        let change = Change::Write(offset.0 as usize, bytes.to_vec());
        self.state.lock().unwrap().change(self.node, &self.path, change)
    }

    fn take_done(&mut self) -> Result<Option<PageBuffer>> {
        Ok(None)
    }

    fn wait_done(&mut self) -> Result<Option<PageBuffer>> {
        Ok(self.done.pop())
    }

    fn sync(&mut self) -> Result<()> {
        self.state.lock().unwrap().sync(self.node, &self.path)
    }

    fn finish(self: Box<Self>, length: ByteCount) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        state.change(self.node, &self.path, Change::Length(length.0 as usize))?;
        state.sync(self.node, &self.path)
    }
}

#[derive(Debug)]
struct Bytes(Vec<u8>);

impl PageSource for Bytes {
    fn length(&self) -> Result<ByteCount> {
        Ok(ByteCount(self.0.len() as u64))
    }

    fn read(&self, buffer: &mut [u8], offset: ByteCount) -> Result<()> {
        let from = offset.0 as usize;
        let bytes = self.0.get(from..from + buffer.len()).ok_or(Error::new("read", Errno::SHORT))?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

#[derive(Debug)]
struct Held {
    state: Arc<Mutex<State>>,
    node: usize,
}

impl Lock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        self.state.lock().unwrap().held.remove(&self.node);
    }
}

fn apply(names: &mut Names, changes: &[(String, Option<usize>)]) {
    for (name, node) in changes {
        match node {
            Some(node) => drop(names.insert(name.clone(), *node)),
            None => drop(names.remove(name)),
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, part: &[u8]) {
    let end = offset + part.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[offset..end].copy_from_slice(part);
}

fn above(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn last(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}
