//! One open file description of the subject.
//!
//! Owns: the facts about a description that need no duplicate ([`Known`]), and a description with a duplicate
//! ([`Description`]).
//! Does not: depend on descriptor kinds, or open duplicates; the module `duplicate` does.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use model::{DescriptionId, Fd, Inode, Pid};
use rustix::fs::Stat;
use tracee::procfs::DescriptorInfo;

use crate::obstacle::Obstacle;

/// Facts about one open file description of the subject. Reading these facts needs no duplicate of the description.
#[derive(Debug)]
pub struct Known {
    /// The id of the description in the image.
    pub id: DescriptionId,
    /// The process in which the description was found first.
    pub pid: Pid,
    /// The fd of the description in this process.
    pub fd: Fd,
    /// Content of `/proc/PID/fd/N` (a link) and of `/proc/PID/fdinfo/N`.
    pub info: DescriptorInfo,
    /// Result of fstat(2) for the description.
    pub stat: Stat,
    /// Index in the registry of the kind that claims the description, once determined.
    pub(super) kind: OnceLock<Option<usize>>,
}

/// One open file description of the subject, with a duplicate of its descriptor in this process. While the duplicate
/// is open, the last close(2) of the subject does not release the description. So a duplicate is dropped at once
/// while the subject runs.
#[derive(Debug)]
pub struct Description {
    known: Arc<Known>,
    /// The duplicate. It shares position and status flags with the descriptors of the subject. While the subject
    /// runs, the duplicate may be an O_PATH descriptor of the file instead; see the module `duplicate`.
    pub duplicate: OwnedFd,
}

impl Known {
    /// Creates the facts from the content of `/proc` and the result of fstat(2).
    #[must_use]
    pub fn new(id: DescriptionId, holder: (Pid, Fd), info: DescriptorInfo, stat: Stat) -> Self {
        Self { id, pid: holder.0, fd: holder.1, info, stat, kind: OnceLock::new() }
    }

    /// Returns device and inode. They identify a file, but all anonymous files share one inode.
    #[must_use]
    pub fn file(&self) -> (u64, Inode) {
        (self.stat.st_dev, self.inode())
    }

    /// Returns the target of the link in `/proc/PID/fd` as text; empty if the target is not UTF-8.
    #[must_use]
    pub fn target(&self) -> &str {
        self.info.target.to_str().unwrap_or("")
    }

    /// Returns the inode number of the file.
    #[must_use]
    pub fn inode(&self) -> Inode {
        Inode(self.stat.st_ino)
    }

    /// Returns the name of this description in an obstacle: `fd 7 (what)`.
    #[must_use]
    pub fn named(&self, what: &str) -> String {
        format!("fd {} ({what})", self.fd)
    }

    /// Creates an obstacle about this description.
    #[must_use]
    pub fn obstacle(&self, what: &str, why: &str, fix: &str) -> Obstacle {
        Obstacle {
            pid: self.pid,
            what: self.named(what),
            place: self.target().to_owned(),
            why: why.to_owned(),
            fix: fix.to_owned(),
        }
    }
}

impl Description {
    /// Combines the facts about a description with a duplicate.
    #[must_use]
    pub fn new(known: Arc<Known>, duplicate: OwnedFd) -> Self {
        Self { known, duplicate }
    }

    /// Returns the facts that need no duplicate.
    #[must_use]
    pub fn known(&self) -> &Arc<Known> {
        &self.known
    }
}

impl Deref for Description {
    type Target = Known;

    fn deref(&self) -> &Known {
        &self.known
    }
}

impl AsFd for Description {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.duplicate.as_fd()
    }
}

/// The suffix that the kernel appends to a removed name.
pub(super) const GONE: &str = " (deleted)";

/// Returns the path under which a description was opened, without the kernel's suffix for removed names.
#[must_use]
pub fn path_of(description: &Known) -> PathBuf {
    PathBuf::from(description.target().trim_end_matches(GONE))
}
