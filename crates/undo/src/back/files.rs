//! Operations of a rollback on files, through a trait that a test can implement.
//!
//! Owns: the trait `FileSystem`.
//! Invariants: in each implementation, a node is one inode, even if the names of the inode change. A name is one path
//! component and is never followed. No operation replaces an existing name.
//! Does not: decide which operations a rollback needs.

use std::fmt::Debug;
use std::path::Path;

use sys::file_rights::Access;

use crate::error::Result;
use crate::key::{Attributes, Extended, FileKey, Time};
use crate::rights::Rights;

/// The present status of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    pub(crate) key: FileKey,
    /// The attributes, without `link` and `extended`.
    pub(crate) attributes: Attributes,
    pub(crate) links: u64,
    pub(crate) changed: Time,
}

impl Status {
    pub(crate) fn is_directory(&self) -> bool {
        self.attributes.kind() == rustix::fs::FileType::Directory
    }

    pub(crate) fn is_file(&self) -> bool {
        self.attributes.kind() == rustix::fs::FileType::RegularFile
    }
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u64,
    /// Whether the inode can be a directory. `false` means that the inode is certainly no directory.
    pub(crate) may_be_directory: bool,
}

/// An inode that a path passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    /// The device and inode number.
    pub(crate) file: (u64, u64),
    pub(crate) changed: Time,
}

/// The work directories of a rollback in a keep directory.
#[derive(Clone, Debug)]
pub(crate) struct Work<Node> {
    /// The directory for inodes that are created again, until the inodes get their names.
    pub(crate) new: Node,
    /// The directory for inodes of the checkpoint that had a wrong name.
    pub(crate) transit: Node,
    /// The directory for files that the subject has created.
    pub(crate) aside: Node,
    /// The path of `aside`.
    pub(crate) path: std::path::PathBuf,
}

/// Operations on files, which are identified by their inodes.
pub(crate) trait FileSystem {
    /// A reference to an inode.
    type Node: Clone + Debug;

    /// Finds the inode of a key. Returns `None` if the inode has no name left. `path` is the last known path.
    fn find(&self, key: &FileKey, path: &Path) -> Result<Option<Self::Node>>;
    fn status(&self, node: &Self::Node) -> Result<Status>;
    /// Returns the extended attributes that a rollback can set, sorted by name.
    fn extended(&self, node: &Self::Node) -> Result<Vec<Extended>>;
    /// Reports whether a program with these rights may access an inode.
    fn permits(&self, node: &Self::Node, rights: &Rights, access: Access) -> Result<bool>;
    /// Reports whether an inode is immutable or append-only, so that no program can set it back (chattr(1)).
    fn is_fixed(&self, node: &Self::Node) -> Result<bool>;
    /// Reports whether a process holds a lease on a file, and asks this process to give the lease up. Does not wait.
    fn is_leased(&self, node: &Self::Node) -> Result<bool>;
    /// Returns the inode that a name leads to.
    fn lookup(&self, directory: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;
    /// Returns the parent of a directory, and the name of the directory in the parent. Returns `None` for a root.
    fn place_of(&self, directory: &Self::Node) -> Result<Option<(Self::Node, Vec<u8>)>>;
    fn names(&self, directory: &Self::Node) -> Result<Vec<Entry>>;
    /// Returns the inodes that a path passes, from the root directory to the last component that exists. Follows no
    /// symbolic link. Returns `None` if the path leads to `file`, and if it leads to a tmpfs, whose files are in images.
    fn way(&self, path: &Path, file: Option<(u64, u64)>) -> Result<Option<Vec<Passed>>>;
    /// Reports whether an inode has a name in the directory of a path. Returns false if the directory cannot be read.
    fn has_name_beside(&self, path: &Path, inode: u64) -> Result<bool>;

    /// Renames a file. Fails if the new name exists.
    fn rename(&self, from: &Self::Node, name: &[u8], to: &Self::Node, to_name: &[u8]) -> Result<()>;
    fn link(&self, node: &Self::Node, directory: &Self::Node, name: &[u8]) -> Result<()>;
    fn unlink(&self, directory: &Self::Node, name: &[u8]) -> Result<()>;
    fn remove_directory(&self, directory: &Self::Node, name: &[u8]) -> Result<()>;
    /// Creates an inode with the type in `attributes`. The other attributes are set later.
    fn make(&self, directory: &Self::Node, name: &[u8], attributes: &Attributes) -> Result<Self::Node>;

    fn write(&self, node: &Self::Node, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Replaces a range by zeros, and frees the disk space of the range if possible.
    fn punch(&self, node: &Self::Node, offset: u64, length: u64) -> Result<()>;
    fn resize(&self, node: &Self::Node, size: u64) -> Result<()>;
    /// Replaces the content by the content of a file in a keep directory.
    fn copy(&self, node: &Self::Node, from: &Path) -> Result<()>;
    /// Works like [`Self::copy`], and writes only what differs. Used for large files of which little has changed.
    fn update(&self, node: &Self::Node, from: &Path) -> Result<()>;
    /// Sets owner, mode, extended attributes and times.
    fn set(&self, node: &Self::Node, attributes: &Attributes) -> Result<()>;

    /// Returns the work directories for the file system of an inode. `number` is the number of the rollback.
    fn work(&self, near: &Self::Node, number: u64) -> Result<Work<Self::Node>>;
    /// Returns the work directories in all existing keep directories.
    fn works(&self, number: u64) -> Result<Vec<Work<Self::Node>>>;
    /// Returns the directories with the links and copies that records name.
    fn kept(&self) -> Result<Vec<Self::Node>>;
    /// Reports whether a file in a keep directory exists.
    fn has_copy(&self, path: &Path) -> bool;
    /// Returns the number of the next rollback. Removes files that the oldest rollbacks have moved aside.
    fn next_number(&self) -> Result<u64>;
    /// Removes the empty work directories of a rollback.
    fn tidy(&self, number: u64) -> Result<()>;
    /// Appends a frame to the description of an `aside` directory.
    fn describe(&self, work: &Work<Self::Node>, frame: &[u8]) -> Result<()>;
    /// Makes all earlier operations durable.
    fn sync(&self) -> Result<()>;
}
