//! One open file description of the subject.
//!
//! Owns: the facts about it, with and without a duplicate.
//! Does not: depend on kinds, or open duplicates; `duplicate` does.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use model::{DescriptionId, Fd, Inode, Pid};
use rustix::fs::Stat;
use tracee::procfs::DescriptorInfo;

use crate::obstacle::Obstacle;

/// Facts about one open file description of the subject that need no duplicate of it.
#[derive(Debug)]
pub struct Known {
    /// Its id in the image.
    pub id: DescriptionId,
    /// The process in which it was found first.
    pub pid: Pid,
    /// The descriptor under which it was found in that process.
    pub fd: Fd,
    /// Content of `/proc/PID/fd/N` and `/proc/PID/fdinfo/N`.
    pub info: DescriptorInfo,
    /// fstat of the description.
    pub stat: Stat,
    /// Index in the registry of the kind that claims it, once determined.
    pub(super) kind: OnceLock<Option<usize>>,
}

/// One open file description of the subject, with a duplicate of it in this process. While the duplicate is open, the
/// subject's last close() does not release the description. So beside a running subject it must be short-lived.
#[derive(Debug)]
pub struct Description {
    known: Arc<Known>,
    /// The duplicate, which shares position and status flags with the subject's. While the subject runs, it may be an
    /// O_PATH descriptor of the file instead, see `duplicate`.
    pub duplicate: OwnedFd,
}

impl Known {
    /// From the content of `/proc` and fstat(2).
    #[must_use]
    pub fn new(id: DescriptionId, holder: (Pid, Fd), info: DescriptorInfo, stat: Stat) -> Self {
        Self { id, pid: holder.0, fd: holder.1, info, stat, kind: OnceLock::new() }
    }

    /// Device and inode. They identify the file, except that anonymous files share one inode.
    #[must_use]
    pub fn file(&self) -> (u64, Inode) {
        (self.stat.st_dev, self.inode())
    }

    /// The link in `/proc/PID/fd` as text; empty if it is not UTF-8.
    #[must_use]
    pub fn target(&self) -> &str {
        self.info.target.to_str().unwrap_or("")
    }

    /// The inode behind the description.
    #[must_use]
    pub fn inode(&self) -> Inode {
        Inode(self.stat.st_ino)
    }

    /// The name of this description in an obstacle: `fd 7 (what)`.
    #[must_use]
    pub fn named(&self, what: &str) -> String {
        format!("fd {} ({what})", self.fd)
    }

    /// An obstacle about this description.
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
    /// With a duplicate.
    #[must_use]
    pub fn new(known: Arc<Known>, duplicate: OwnedFd) -> Self {
        Self { known, duplicate }
    }

    /// The facts that need no duplicate.
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

/// The kernel's suffix for a removed name.
pub(super) const GONE: &str = " (deleted)";

/// The path under which a description was opened, without the kernel's suffix for deleted files.
#[must_use]
pub fn path_of(description: &Known) -> PathBuf {
    PathBuf::from(description.target().trim_end_matches(GONE))
}
