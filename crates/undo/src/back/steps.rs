//! The steps of a rollback.
//!
//! A survey has found the names that lead to a wrong inode, and the inodes that belong to the checkpoint. The steps
//! correct these names, and then restore content and attributes.
//!
//! A rollback uses three work directories on each file system:
//!
//! - `new` contains inodes of the checkpoint that the rollback has created again, until they have their names.
//! - `transit` contains inodes of the checkpoint that had a wrong name, until they have their names of the checkpoint.
//! - `aside` contains files that the subject has created since the checkpoint.
//!
//! Owns: the order of the steps, and the operations of each step.
//! Invariants: each step is computed from the present files. Therefore, a later attempt can execute all steps once
//! more. An inode of the checkpoint never loses its last name. A file that the subject has created is moved, and never
//! removed.
//! Does not: decide which inodes belong to the checkpoint; `survey` does.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use model::ByteCount;
use rustix::fs::FileType;

use super::aside::MovedAside;
use super::attributes::attributes_to_set;
use super::files::{FileSystem, Status, Work};
use super::survey::{self, Survey, WrongName};
use crate::error::{Result, UndoError};
use crate::key::Time;
use crate::log::journal::Journal;
use crate::log::storage::{LogFile, Storage};
use crate::log::target::{Index, Layer, Piece, Target};
use crate::log::{epoch_name, frame, record};

/// The number of bytes that one read and one write copy.
const BLOCK_BYTES: u64 = 1 << 20;

/// A rollback in progress.
pub(crate) struct Steps<'a, Files: FileSystem> {
    files: &'a Files,
    storage: &'a dyn Storage,
    journal: &'a mut Journal,
    target: &'a mut Target,
    survey: Survey,
    attempt: Attempt,
    /// The number that was last used as the name of an entry in a work directory, by the path of the work directory.
    next: HashMap<PathBuf, u64>,
    epochs: HashMap<u64, Box<dyn LogFile>>,
    /// The number of changes that remain, for messages.
    left: usize,
    total: usize,
    aside: Vec<MovedAside>,
}

/// The parameters of all steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// The number of the rollback.
    pub(crate) number: u64,
    /// Whether files are synced, so that the rollback can be continued after a power cut.
    pub(crate) is_durable: bool,
    /// The time at which this attempt began.
    pub(crate) time: Time,
}

/// The result of all steps.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) changed: usize,
    pub(crate) aside: Vec<MovedAside>,
}

impl<'a, Files: FileSystem> Steps<'a, Files> {
    pub(crate) fn new(
        files: &'a Files,
        storage: &'a dyn Storage,
        journal: &'a mut Journal,
        target: &'a mut Target,
        survey: Survey,
        attempt: Attempt,
    ) -> Self {
        let (next, epochs, aside) = (HashMap::new(), HashMap::new(), Vec::new());
        Self { files, storage, journal, target, survey, attempt, next, epochs, left: 0, total: 0, aside }
    }

    /// Rolls all files back.
    pub(crate) fn run(mut self) -> Result<Done> {
        let wrong = std::mem::take(&mut self.survey.wrong);
        let mut changed: BTreeSet<Index> = self.survey.changed.iter().copied().collect();
        // A change of a name in a directory changes the modification time of the directory. Restore the attributes of
        // these directories, too.
        changed.extend(wrong.iter().map(|wrong| wrong.directory));
        self.total = wrong.len() + changed.len();
        self.left = self.total;
        for wrong in wrong.iter().filter(|wrong| wrong.now.is_some()) {
            let outcome = self.clear_name(wrong);
            outcome.map_err(|error| self.failed(self.path_of(wrong), error))?;
        }
        self.make_all(&wrong)?;
        if self.attempt.is_durable {
            self.journal.sync()?;
        }
        for wrong in &wrong {
            let outcome = self.place(wrong);
            outcome.map_err(|error| self.failed(self.path_of(wrong), error))?;
            self.left -= 1;
        }
        if self.attempt.is_durable {
            // On some file systems, a later change of a name can become durable before an earlier change. Make the new
            // names of inodes durable before their names in work directories are removed.
            self.files.sync()?;
        }
        for work in self.files.works(self.attempt.number)? {
            self.empty(&work).map_err(|error| self.failed(work.path.clone(), error))?;
        }
        let is_directory = |index: &Index| self.kind(*index) == FileType::Directory;
        let (directories, files): (Vec<Index>, Vec<Index>) = changed.iter().copied().partition(is_directory);
        for index in files.iter().chain(&directories) {
            let outcome = self.content(*index).and_then(|()| self.attributes(*index));
            outcome.map_err(|error| self.failed(self.target.inodes[*index].path.clone(), error))?;
            self.left -= 1;
        }
        if self.attempt.is_durable {
            self.files.sync()?;
        }
        Ok(Done { changed: self.total, aside: self.aside })
    }

    /// Moves the inode to which a name wrongly leads into a work directory.
    fn clear_name(&mut self, wrong: &WrongName) -> Result<()> {
        let Some(expected) = &wrong.now else { return Ok(()) };
        let Some(directory) = self.node(wrong.directory)? else { return Ok(()) };
        let Some(node) = self.files.lookup(&directory, &wrong.name)? else { return Ok(()) };
        let now = self.files.status(&node)?;
        let path = self.path_of(wrong);
        if now.key != expected.key {
            return Err(UndoError::Conflict { paths: vec![path] });
        }
        let work = self.files.work(&directory, self.attempt.number)?;
        let belongs = self.target.indices.get(&now.key).is_some_and(|index| self.survey.belongs[*index]);
        if belongs {
            let name = self.next_name(&work.transit, &work.path.join("transit"))?;
            return self.files.rename(&directory, &wrong.name, &work.transit, name.as_bytes());
        }
        self.put_aside((&directory, &wrong.name), &work, &now, &path)
    }

    fn put_aside(
        &mut self,
        (directory, name): (&Files::Node, &[u8]),
        work: &Work<Files::Node>,
        now: &Status,
        path: &Path,
    ) -> Result<()> {
        let number = self.next_number(&work.aside, &work.path)?;
        let bytes = if now.is_file() { now.attributes.size } else { 0 };
        let time = self.attempt.time;
        let home = Some((&self.files.status(directory)?.key).into());
        let aside = record::Aside { number, path: record::bytes_of(path), bytes, time, directory: home };
        let frame = frame::encode(&aside, &[]);
        // Describe the file before the move. If no move follows, the list of moved files ignores the description,
        // because the file does not exist.
        self.files.describe(work, &frame)?;
        self.files.rename(directory, name, &work.aside, number.to_string().as_bytes())?;
        let to = work.path.join(number.to_string());
        self.aside.push(MovedAside { path: path.to_path_buf(), to, bytes: ByteCount(bytes) });
        Ok(())
    }

    /// Creates all inodes of the checkpoint that do not exist any more, in the work directory `new`. Before an inode
    /// gets its name of the checkpoint, the journal must be durable. Creating all inodes before the first name is set
    /// needs only one sync of the journal.
    fn make_all(&mut self, wrong: &[WrongName]) -> Result<()> {
        let mut homes: HashMap<Index, &WrongName> = HashMap::new();
        for wrong in wrong {
            if let Some(before) = wrong.before.filter(|before| self.kind(*before) == FileType::Directory) {
                homes.insert(before, wrong);
            }
        }
        for wrong in wrong {
            let Some(before) = wrong.before else { continue };
            if self.node(before)?.is_some() {
                continue;
            }
            // Find the nearest parent directory that exists, because the inode must be created on the same mount. The
            // limit on levels ends the loop if a damaged log contains a cycle.
            let (mut above, mut levels) = (wrong.directory, 0);
            while let (None, Some(home)) = (self.node(above)?, homes.get(&above))
                && levels <= homes.len()
            {
                (above, levels) = (home.directory, levels + 1);
            }
            let outcome = match self.node(above)? {
                Some(near) => self.make(before, &near),
                None => Err(self.vanished(above)),
            };
            outcome.map_err(|error| self.failed(self.path_of(wrong), error))?;
        }
        Ok(())
    }

    /// Gives an inode the name that the inode had at the checkpoint.
    fn place(&mut self, wrong: &WrongName) -> Result<()> {
        let Some(before) = wrong.before else { return Ok(()) };
        let inode = &self.target.inodes[before];
        let Some(directory) = self.node(wrong.directory)? else {
            return Err(self.vanished(wrong.directory));
        };
        if let Some(there) = self.files.lookup(&directory, &wrong.name)? {
            let is_right = self.files.status(&there)?.key == inode.key;
            let paths = vec![self.path_of(wrong)];
            return if is_right { Ok(()) } else { Err(UndoError::Conflict { paths }) };
        }
        match self.files.find(&inode.key, &inode.path)? {
            Some(node) if inode.attributes.kind() == FileType::Directory => {
                let Some((above, name)) = self.files.place_of(&node)? else {
                    return Err(self.vanished(before));
                };
                self.files.rename(&above, &name, &directory, &wrong.name)
            }
            Some(node) => self.files.link(&node, &directory, &wrong.name),
            None => Err(self.vanished(before)),
        }
    }

    fn make(&mut self, index: Index, near: &Files::Node) -> Result<()> {
        let work = self.files.work(near, self.attempt.number)?;
        let new_name = self.next_name(&work.new, &work.path.join("new"))?;
        let inode = &mut self.target.inodes[index];
        let node = self.files.make(&work.new, new_name.as_bytes(), &inode.attributes)?;
        let status = self.files.status(&node)?;
        self.journal.made(&inode.key, &status.key)?;
        (inode.key, inode.is_made) = (status.key.clone(), true);
        self.target.indices.insert(status.key.clone(), index);
        self.survey.now[index] = Some(status);
        Ok(())
    }

    /// Empties the work directories `new` and `transit`.
    fn empty(&mut self, work: &Work<Files::Node>) -> Result<()> {
        for entry in self.files.names(&work.new)? {
            let Some(node) = self.files.lookup(&work.new, &entry.name)? else { continue };
            // Usually, the inode already has its name of the checkpoint, and the name in `new` is not needed any more.
            // If the inode has no other name, an interrupted attempt has created the inode.
            let now = self.files.status(&node)?;
            if !now.is_directory() {
                self.files.unlink(&work.new, &entry.name)?;
            } else if self.files.names(&node)?.is_empty() {
                self.files.remove_directory(&work.new, &entry.name)?;
            } else {
                self.put_aside((&work.new, &entry.name), work, &now, &PathBuf::new())?;
            }
        }
        for entry in self.files.names(&work.transit)? {
            let Some(node) = self.files.lookup(&work.transit, &entry.name)? else { continue };
            let now = self.files.status(&node)?;
            let index = self.target.indices.get(&now.key);
            if !now.is_directory() && now.links > 1 && index.is_some_and(|index| self.survey.belongs[*index])
            {
                self.files.unlink(&work.transit, &entry.name)?;
                continue;
            }
            // The file does not belong to this checkpoint. An earlier attempt, which rolled back to another checkpoint,
            // has moved the file here.
            let path = index.map_or(PathBuf::new(), |index| self.target.inodes[*index].path.clone());
            self.put_aside((&work.transit, &entry.name), work, &now, &path)?;
        }
        Ok(())
    }

    /// Restores the content of a file. Applies the layers of all epochs, from the newest epoch to the oldest epoch, and
    /// then sets the length.
    fn content(&mut self, index: Index) -> Result<()> {
        let inode = &self.target.inodes[index];
        let Some(node) = self.node(index)? else { return Err(self.vanished(index)) };
        if !survey::has_other_content(inode, &self.files.status(&node)?) {
            return Ok(());
        }
        let size = inode.attributes.size;
        let mut layers = inode.content.clone();
        // If several epochs have recorded the whole content, start at the oldest of these epochs: its whole content
        // replaces the content of all newer epochs.
        if let Some(oldest) = layers.iter().rposition(|layer| layer.whole.is_some()) {
            layers.drain(..oldest);
        }
        for layer in layers {
            if let Some(whole) = &layer.whole {
                self.files.copy(&node, whole)?;
            } else if let Some(shadow) = &layer.shadow {
                self.files.update(&node, shadow)?;
            }
            // If two pieces overlap, the first piece is correct. Write the pieces in reverse order, so that the first
            // piece is written last.
            for piece in layer.pieces.iter().rev() {
                self.piece(&node, &layer, *piece, size)?;
            }
        }
        if self.files.status(&node)?.attributes.size != size {
            self.files.resize(&node, size)?;
        }
        Ok(())
    }

    fn piece(&mut self, node: &Files::Node, layer: &Layer, piece: Piece, size: u64) -> Result<()> {
        let end = piece.offset.saturating_add(piece.length).min(size);
        if end <= piece.offset {
            return Ok(());
        }
        let Some(data_offset) = piece.data_offset else {
            return self.files.punch(node, piece.offset, end - piece.offset);
        };
        if !self.epochs.contains_key(&layer.ordinal) {
            self.epochs.insert(layer.ordinal, self.storage.open(&epoch_name(layer.ordinal))?);
        }
        let file = &self.epochs[&layer.ordinal];
        let mut block = vec![0; BLOCK_BYTES.min(end - piece.offset) as usize];
        let mut offset = piece.offset;
        while offset < end {
            let part = &mut block[..BLOCK_BYTES.min(end - offset) as usize];
            if file.read(data_offset + (offset - piece.offset), part)? != part.len() {
                return Err(UndoError::Torn { directory: self.storage.path() });
            }
            self.files.write(node, offset, part)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn attributes(&mut self, index: Index) -> Result<()> {
        let Some(node) = self.node(index)? else { return Err(self.vanished(index)) };
        let inode = &self.target.inodes[index];
        let now = self.files.status(&node)?;
        match attributes_to_set(self.files, inode, &now)? {
            Some(wanted) => self.files.set(&node, &wanted),
            None => Ok(()),
        }
    }

    fn node(&self, index: Index) -> Result<Option<Files::Node>> {
        let inode = &self.target.inodes[index];
        self.files.find(&inode.key, &inode.path)
    }

    fn kind(&self, index: Index) -> FileType {
        self.target.inodes[index].attributes.kind()
    }

    fn path_of(&self, wrong: &WrongName) -> PathBuf {
        self.target.path_of(wrong.directory, &wrong.name)
    }

    fn next_name(&mut self, directory: &Files::Node, path: &Path) -> Result<String> {
        Ok(self.next_number(directory, path)?.to_string())
    }

    /// Returns a number that no entry of the work directory `directory` has as its name.
    fn next_number(&mut self, directory: &Files::Node, path: &Path) -> Result<u64> {
        if !self.next.contains_key(path) {
            let names = self.files.names(directory)?;
            let number = |name: &[u8]| std::str::from_utf8(name).ok()?.parse::<u64>().ok();
            let last = names.iter().filter_map(|entry| number(&entry.name)).max().unwrap_or(0);
            self.next.insert(path.to_path_buf(), last);
        }
        let next = self.next.entry(path.to_path_buf()).or_default();
        *next += 1;
        Ok(*next)
    }

    /// Returns the error for an inode that another program has removed during the rollback.
    fn vanished(&self, index: Index) -> UndoError {
        UndoError::Conflict { paths: vec![self.target.inodes[index].path.clone()] }
    }

    fn failed(&self, path: PathBuf, error: UndoError) -> UndoError {
        let left = format!("{} of {} changes are left", self.left, self.total);
        match error {
            UndoError::Step { .. } => error,
            error => UndoError::Step { path, source: Box::new(error), left },
        }
    }
}
