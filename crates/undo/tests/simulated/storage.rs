//! The directory of an undo log on the simulated disk.
//!
//! Owns: the implementation of `Storage` and `LogFile`.
//! Invariants: writes are held back by the same queue as on a real disk.
//! Does not: store content; `disk` does.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::ByteCount;
use sys::Errno;

use super::disk::{Disk, KEPT, LOG, failed, kept_name};
use crate::error::{Result, UndoError};
use crate::key::{Attributes, Time};
use crate::log::storage::{LogFile, Storage};
use crate::log::write_queue::{Change, Drained, WriteQueue};

/// The access of one program to the log.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedStorage {
    disk: Disk,
    queue: Arc<WriteQueue<u64>>,
}

#[derive(Debug)]
struct SimulatedFile {
    storage: SimulatedStorage,
    inode: u64,
}

impl SimulatedStorage {
    pub(super) fn new(disk: Disk) -> Self {
        Self { disk, queue: Arc::default() }
    }

    fn file(&self, inode: u64) -> Box<dyn LogFile> {
        Box::new(SimulatedFile { storage: self.clone(), inode })
    }
}

impl Storage for SimulatedStorage {
    fn names(&self) -> Result<Vec<String>> {
        let names = self.disk.names_of(LOG);
        Ok(names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect())
    }

    fn create(&self, name: &str) -> Result<Box<dyn LogFile>> {
        Ok(self.file(self.disk.create(LOG, name.as_bytes(), &Attributes::default())?))
    }

    fn open(&self, name: &str) -> Result<Box<dyn LogFile>> {
        let inode = self.disk.child(LOG, name.as_bytes()).ok_or_else(|| failed("open", Errno::ENOENT))?;
        Ok(self.file(inode))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.disk.rename_to((LOG, from.as_bytes()), (LOG, to.as_bytes()), true)
    }

    fn remove(&self, name: &str) -> Result<()> {
        match self.disk.child(LOG, name.as_bytes()) {
            Some(_) => self.disk.remove(LOG, name.as_bytes()),
            None => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        // A journal of metadata keeps the order of changes, so that all earlier changes of metadata become durable.
        self.disk.sync(Some(LOG))
    }

    fn boot(&self) -> Result<String> {
        Ok(self.disk.boot())
    }

    fn now(&self) -> Time {
        self.disk.now()
    }

    fn drop_kept(&self, path: &Path) -> Result<()> {
        match self.disk.child(KEPT, &kept_name(path)) {
            Some(_) => self.disk.remove(KEPT, &kept_name(path)),
            None => Ok(()),
        }
    }

    fn kept_bytes(&self, path: &Path) -> Result<ByteCount> {
        let inode = self.disk.child(KEPT, &kept_name(path)).unwrap();
        Ok(ByteCount(self.disk.inode(inode).unwrap().attributes.size))
    }

    fn sweep_kept(&self, named: &HashSet<PathBuf>) -> Result<()> {
        let path = |name: &[u8]| Path::new("/kept").join(std::str::from_utf8(name).unwrap());
        for name in self.disk.names_of(KEPT).iter().filter(|name| !named.contains(&path(name))) {
            self.disk.remove(KEPT, name)?;
        }
        Ok(())
    }

    fn hold(&self) {
        self.queue.hold();
    }

    fn end_hold(&self) {
        self.queue.end_hold();
    }

    fn drain(&self) -> Result<()> {
        let drained = self.queue.drain(|change| match change {
            Change::Write { to, offset, bytes } => self.disk.write(**to, *offset, bytes),
            Change::Remove(name) => self.remove(name),
            Change::DropKept(path) => self.drop_kept(path),
        })?;
        match drained {
            Drained::Whole => Ok(()),
            Drained::FailedBefore => Err(UndoError::Torn { directory: self.path() }),
        }
    }

    fn remove_later(&self, name: &str) -> Result<()> {
        self.queue.add(Change::Remove(name.to_owned()));
        Ok(())
    }

    fn drop_kept_later(&self, path: &Path) -> Result<()> {
        self.queue.add(Change::DropKept(path.to_owned()));
        Ok(())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/undo")
    }
}

impl LogFile for SimulatedFile {
    fn write(&self, offset: u64, parts: [&[u8]; 2]) -> Result<()> {
        let SimulatedStorage { disk, queue } = &self.storage;
        if queue.is_held() {
            let to = Arc::new(self.inode);
            queue.add(Change::Write { to, offset, bytes: parts.concat() });
            return Ok(());
        }
        self.storage.drain()?;
        disk.write(self.inode, offset, &parts.concat())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let state = self.storage.disk.state();
        let from = state.now[&self.inode].data.get(offset as usize..).unwrap_or_default();
        let length = from.len().min(buffer.len());
        buffer[..length].copy_from_slice(&from[..length]);
        Ok(length)
    }

    fn truncate(&self, length: u64) -> Result<()> {
        self.storage.disk.truncate(self.inode, length)
    }

    fn length(&self) -> Result<u64> {
        Ok(self.storage.disk.state().now[&self.inode].data.len() as u64)
    }

    fn sync(&self) -> Result<()> {
        self.storage.disk.sync(Some(self.inode))
    }
}
