//! The records of file states that the writer of an undo log appends.
//!
//! Owns: one method for each kind of record of a file state.
//! Invariants: ids of directories, inodes and rights rise within an epoch.
//! Does not: append bytes, or limit the size of the log; the parent module does.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use model::ByteCount;

use super::frame::DATA_BYTES_MAX;
use super::record;
use super::{DirectoryId, InodeId, UndoLog};
use crate::error::Result;
use crate::key::{Attributes, FileKey, Time};
use crate::rights::{Rights, RightsId, Touch};

impl UndoLog {
    /// Records a directory, before the first change of a name in this directory. `path` is only for messages.
    pub fn directory(&mut self, key: &FileKey, attributes: &Attributes, path: &Path) -> Result<DirectoryId> {
        let (id, path) = (self.ids.directories, record::bytes_of(path));
        self.state(&record::Directory { id, key: key.into(), attributes: attributes.clone(), path }, &[])?;
        self.ids.directories += 1;
        Ok(DirectoryId(id))
    }

    /// Records an inode and its attributes, before the first change of the inode and before the inode loses a name.
    /// `changed` is the status change time if a later change must set another time.
    pub(crate) fn inode(
        &mut self,
        key: &FileKey,
        attributes: &Attributes,
        path: &Path,
        touch: Touch,
        changed: Option<Time>,
    ) -> Result<InodeId> {
        let (id, path) = (self.ids.inodes, record::bytes_of(path));
        let (aspects, rights) = (Some(touch.aspects.0), touch.rights.0);
        let (key, attributes) = (key.into(), attributes.clone());
        self.state(&record::Inode { id, key, attributes, path, aspects, rights, changed }, &[])?;
        self.ids.inodes += 1;
        Ok(InodeId(id))
    }

    /// Records a further change of an inode, before the change: other aspects, or other rights.
    pub(crate) fn touched(&mut self, inode: InodeId, touch: Touch, attributes: &Attributes) -> Result<()> {
        let (aspects, rights) = (touch.aspects.0, touch.rights.0);
        let attributes = attributes.clone();
        self.state(&record::Touched { inode: inode.0, aspects, rights, attributes }, &[])
    }

    /// Records the rights of a thread, before the first record that names these rights.
    pub(crate) fn rights(&mut self, rights: &Rights) -> Result<RightsId> {
        self.ids.rights += 1;
        let id = self.ids.rights;
        self.state(&record::Rights::of(id, rights), &[])?;
        Ok(RightsId(id))
    }

    /// Records to which inode a name led when the epoch began. `None` means that the name did not exist. If the name
    /// changes again with other rights, a further record names these rights.
    pub(crate) fn name(
        &mut self,
        directory: DirectoryId,
        name: &OsStr,
        before: Option<InodeId>,
        rights: RightsId,
    ) -> Result<()> {
        let (before, rights) = (before.map(|inode| inode.0), rights.0);
        let name = name.as_bytes().to_vec();
        self.state(&record::Name { directory: directory.0, name, before, rights }, &[])
    }

    /// Records the old content of a range. The range must end at or before the recorded size. If the epoch also has a
    /// record of the whole content ([`Self::whole_in`]), a rollback applies that record first.
    pub fn range(&mut self, inode: InodeId, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut offset = offset;
        for data in bytes.chunks(DATA_BYTES_MAX) {
            self.state(&record::Range { inode: inode.0, offset }, data)?;
            offset += data.len() as u64;
        }
        Ok(())
    }

    /// Records a range that was a hole or contained zeros.
    pub fn hole(&mut self, inode: InodeId, offset: u64, length: ByteCount) -> Result<()> {
        self.state(&record::Hole { inode: inode.0, offset, length: length.get() }, &[])
    }

    /// Records that `file`, a reflink or a copy in a keep directory, contains the whole old content of an inode. The
    /// log removes the file together with the epoch, or at once if this call fails.
    pub fn whole_in(&mut self, inode: InodeId, file: &Path) -> Result<()> {
        self.keep(&record::Whole { inode: inode.0, file: record::bytes_of(file) }, file)
    }

    /// Records a hard link of an inode in a keep directory. The link preserves an inode whose other names are removed.
    /// The log removes the link together with the epoch, or at once if this call fails.
    pub fn linked(&mut self, inode: InodeId, link: &Path) -> Result<()> {
        self.keep(&record::Linked { inode: inode.0, link: record::bytes_of(link) }, link)
    }

    /// Records a file that can change undetected from now on. A restore compares this file with the checkpoint.
    pub fn uncovered(&mut self, device: u64, inode: u64, path: &Path) -> Result<()> {
        self.state(&record::Uncovered { device, inode, path: record::bytes_of(path) }, &[])
    }
}
