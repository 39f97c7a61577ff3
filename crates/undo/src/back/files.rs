//! What going back does to files, so that a test can stand in for the kernel.
//!
//! Owns: the trait `FileSystem`.
//! Invariants asked of an implementation: a node is one inode, whatever its names do; a name is one component and is
//! never followed; nothing replaces what has a name.
//! Does not: decide what is done.

use std::fmt::Debug;
use std::path::Path;

use crate::error::Result;
use crate::key::{Attributes, FileKey, Time};

/// What an inode is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    pub(crate) key: FileKey,
    /// Without `link` and `extended`.
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
    /// `false` if it is known to be none.
    pub(crate) may_be_directory: bool,
}

/// The directories of a keep place that going back works in.
#[derive(Clone, Debug)]
pub(crate) struct Work<Node> {
    /// Inodes that are made again, before they have their names.
    pub(crate) new: Node,
    /// What sits at a wrong name and belongs to the checkpoint.
    pub(crate) transit: Node,
    /// What the subject has made.
    pub(crate) aside: Node,
    /// The path of `aside`.
    pub(crate) path: std::path::PathBuf,
}

/// Files, by inode.
pub(crate) trait FileSystem {
    /// An inode.
    type Node: Clone + Debug;

    /// The inode of a key; `None` when it has no name left. `path` is where it was.
    fn find(&self, key: &FileKey, path: &Path) -> Result<Option<Self::Node>>;
    fn status(&self, node: &Self::Node) -> Result<Status>;
    /// Extended attributes that can be set again, by rising name.
    fn extended(&self, node: &Self::Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// What a name leads to.
    fn lookup(&self, directory: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;
    /// The directory that holds a directory, and its name there; `None` for a root.
    fn place_of(&self, directory: &Self::Node) -> Result<Option<(Self::Node, Vec<u8>)>>;
    fn names(&self, directory: &Self::Node) -> Result<Vec<Entry>>;

    /// Fails when `to` has the name already.
    fn rename(&self, from: &Self::Node, name: &[u8], to: &Self::Node, to_name: &[u8]) -> Result<()>;
    fn link(&self, node: &Self::Node, directory: &Self::Node, name: &[u8]) -> Result<()>;
    fn unlink(&self, directory: &Self::Node, name: &[u8]) -> Result<()>;
    fn remove_directory(&self, directory: &Self::Node, name: &[u8]) -> Result<()>;
    /// Makes an inode of the type of these attributes; the others are set later.
    fn make(&self, directory: &Self::Node, name: &[u8], attributes: &Attributes) -> Result<Self::Node>;

    fn write(&self, node: &Self::Node, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Makes a range zeros, without room on the disk if that is possible.
    fn punch(&self, node: &Self::Node, offset: u64, length: u64) -> Result<()>;
    fn resize(&self, node: &Self::Node, size: u64) -> Result<()>;
    /// Replaces the content by that of a file in a keep directory.
    fn copy(&self, node: &Self::Node, from: &Path) -> Result<()>;
    /// Sets owner, mode, extended attributes and times.
    fn set(&self, node: &Self::Node, attributes: &Attributes) -> Result<()>;

    /// The keep place for an inode; the aside directory is that of going back number `number`.
    fn work(&self, near: &Self::Node, number: u64) -> Result<Work<Self::Node>>;
    /// The keep places that there are already: directories of links, and what the above gives.
    fn works(&self, number: u64) -> Result<Vec<Work<Self::Node>>>;
    /// Directories with links and copies that records name.
    fn kept(&self) -> Result<Vec<Self::Node>>;
    /// Whether a file of a keep directory is there.
    fn has_copy(&self, path: &Path) -> bool;
    /// The number of the next going back. Removes what the oldest ones have moved aside.
    fn next_number(&self) -> Result<u64>;
    /// Removes work directories of a going back that are empty.
    fn tidy(&self, number: u64) -> Result<()>;
    /// Adds a frame to the description of an aside directory.
    fn describe(&self, work: &Work<Self::Node>, frame: &[u8]) -> Result<()>;
    /// Makes all that was done so far durable.
    fn sync(&self) -> Result<()>;
}
