//! Operations of a rollback on the simulated disk.
//!
//! Owns: the implementation of the trait `FileSystem` for the simulated disk.
//! Invariants: the program can be killed at each operation.
//! Does not: store state; the disk does.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use sys::file_rights::Access;

use super::disk::{ASIDE, DEVICE, Disk, KEPT, NEW, ROOT, TRANSIT, kept_name, key_of, parent_of};
use crate::back::files::{Entry, FileSystem, Passed, Status, Work};
use crate::error::Result;
use crate::key::{Attributes, Extended, FileKey};
use crate::rights::Rights;

/// The files of a simulated disk.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) disk: Disk,
}

impl FileSystem for Files {
    type Node = u64;

    fn find(&self, key: &FileKey, _path: &Path) -> Result<Option<u64>> {
        Ok(self.disk.inode(key.inode).map(|_| key.inode))
    }

    fn status(&self, node: &u64) -> Result<Status> {
        let inode = self.disk.inode(*node).unwrap();
        let attributes = Attributes { link: Vec::new(), extended: Vec::new(), ..inode.attributes };
        Ok(Status { key: key_of(*node), attributes, links: inode.links, changed: inode.changed })
    }

    fn extended(&self, node: &u64) -> Result<Vec<Extended>> {
        Ok(self.disk.inode(*node).unwrap().attributes.extended)
    }

    fn permits(&self, _node: &u64, _rights: &Rights, _access: Access) -> Result<bool> {
        Ok(true)
    }

    fn is_leased(&self, _node: &u64) -> Result<bool> {
        Ok(false)
    }

    fn is_fixed(&self, _node: &u64) -> Result<bool> {
        Ok(false)
    }

    fn lookup(&self, directory: &u64, name: &[u8]) -> Result<Option<u64>> {
        Ok(self.disk.child(*directory, name))
    }

    fn place_of(&self, directory: &u64) -> Result<Option<(u64, Vec<u8>)>> {
        Ok(parent_of(&self.disk.state().now, *directory))
    }

    fn names(&self, directory: &u64) -> Result<Vec<Entry>> {
        let state = self.disk.state();
        let entry = |(name, inode): (&Vec<u8>, &u64)| {
            let is_directory = state.now[inode].attributes.kind() == FileType::Directory;
            Entry { name: name.clone(), inode: *inode, may_be_directory: is_directory }
        };
        Ok(state.now[directory].names.iter().map(entry).collect())
    }

    fn way(&self, path: &Path, file: Option<(u64, u64)>) -> Result<Option<Vec<Passed>>> {
        let passed =
            |inode: u64| Passed { file: (DEVICE, inode), changed: self.disk.inode(inode).unwrap().changed };
        let (mut at, mut way) = (ROOT, vec![passed(ROOT)]);
        for name in path.iter().skip(1) {
            let Some(next) = self.disk.child(at, name.as_encoded_bytes()) else { return Ok(Some(way)) };
            (at, way) = (next, [way, vec![passed(next)]].concat());
        }
        Ok((file != Some((DEVICE, at))).then_some(way))
    }

    fn has_name_beside(&self, path: &Path, inode: u64) -> Result<bool> {
        let parent = path.parent().unwrap();
        let way = self.way(parent, None)?.unwrap();
        let directory = way.last().filter(|_| way.len() == parent.iter().count());
        let names = directory.map(|directory| self.names(&directory.file.1)).transpose()?;
        Ok(names.is_some_and(|names| names.iter().any(|entry| entry.inode == inode)))
    }

    fn rename(&self, from: &u64, name: &[u8], to: &u64, to_name: &[u8]) -> Result<()> {
        self.disk.rename_to((*from, name), (*to, to_name), false)
    }

    fn link(&self, node: &u64, directory: &u64, name: &[u8]) -> Result<()> {
        self.disk.add_link(*node, *directory, name)
    }

    fn unlink(&self, directory: &u64, name: &[u8]) -> Result<()> {
        let inode = self.disk.child(*directory, name).unwrap();
        // A rollback never removes the last name of an inode, except in the work directory `NEW`.
        assert!(*directory == NEW || self.disk.inode(inode).unwrap().links > 1);
        self.disk.remove(*directory, name)
    }

    fn remove_directory(&self, directory: &u64, name: &[u8]) -> Result<()> {
        self.disk.remove(*directory, name)
    }

    fn make(&self, directory: &u64, name: &[u8], attributes: &Attributes) -> Result<u64> {
        let mode = FileType::from_raw_mode(attributes.mode).as_raw_mode() | 0o600;
        self.disk.create(
            *directory,
            name,
            &Attributes { mode, link: attributes.link.clone(), ..Attributes::default() },
        )
    }

    fn write(&self, node: &u64, offset: u64, bytes: &[u8]) -> Result<()> {
        self.disk.write_at(*node, offset, bytes)
    }

    fn punch(&self, node: &u64, offset: u64, length: u64) -> Result<()> {
        let size = self.disk.inode(*node).unwrap().attributes.size;
        let end = (offset + length).min(size);
        if offset < end {
            self.disk.write_at(*node, offset, &vec![0; (end - offset) as usize])
        } else {
            Ok(())
        }
    }

    fn resize(&self, node: &u64, size: u64) -> Result<()> {
        self.disk.set_size(*node, size)
    }

    fn copy(&self, node: &u64, from: &Path) -> Result<()> {
        let source = self.disk.child(KEPT, &kept_name(from)).unwrap();
        let data = self.disk.inode(source).unwrap().data;
        self.disk.set_size(*node, 0)?;
        self.disk.write_at(*node, 0, &data)
    }

    fn update(&self, node: &u64, from: &Path) -> Result<()> {
        self.copy(node, from)
    }

    fn set(&self, node: &u64, attributes: &Attributes) -> Result<()> {
        self.disk.set_attributes(*node, attributes)
    }

    fn work(&self, _near: &u64, _number: u64) -> Result<Work<u64>> {
        Ok(Work { new: NEW, transit: TRANSIT, aside: ASIDE, path: PathBuf::from("/aside") })
    }

    fn works(&self, number: u64) -> Result<Vec<Work<u64>>> {
        Ok(vec![self.work(&ROOT, number)?])
    }

    fn kept(&self) -> Result<Vec<u64>> {
        Ok(vec![KEPT])
    }

    fn has_copy(&self, path: &Path) -> bool {
        self.disk.child(KEPT, &kept_name(path)).is_some()
    }

    fn next_number(&self) -> Result<u64> {
        Ok(1)
    }

    fn tidy(&self, _number: u64) -> Result<()> {
        Ok(())
    }

    fn describe(&self, _work: &Work<u64>, _frame: &[u8]) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.disk.sync(None)
    }
}
