//! One open file description of the subject.
//!
//! Owns: what is known of it, with and without a duplicate.
//! Does not: know kinds, or open duplicates; `duplicate` does.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use model::{DescriptionId, Fd, Inode, Pid};
use rustix::fs::Stat;
use tracee::procfs::DescriptorInfo;

use crate::obstacle::Obstacle;

/// One open file description of the subject, as far as it is known without a duplicate of it.
#[derive(Debug)]
pub struct Known {
    /// Its number in the image.
    pub id: DescriptionId,
    /// The process in which it was found first.
    pub pid: Pid,
    /// The descriptor under which it was found there.
    pub fd: Fd,
    /// What `/proc` says of that descriptor.
    pub info: DescriptorInfo,
    /// fstat of the description.
    pub stat: Stat,
    /// The place in the registry of the kind that claims it, once that has been asked.
    pub(super) kind: OnceLock<Option<usize>>,
}

/// One open file description of the subject, with a duplicate of it in this process. As long as one is open, a last
/// close inside the subject is none: it has to be short where the subject runs.
#[derive(Debug)]
pub struct Description {
    known: Arc<Known>,
    /// The duplicate: shares position and status flags with the subject's. While the subject runs it stands only for
    /// the file where that is enough, see `duplicate`.
    pub duplicate: OwnedFd,
}

impl Known {
    /// What `/proc` and fstat(2) told.
    #[must_use]
    pub fn new(id: DescriptionId, holder: (Pid, Fd), info: DescriptorInfo, stat: Stat) -> Self {
        Self { id, pid: holder.0, fd: holder.1, info, stat, kind: OnceLock::new() }
    }

    /// Device and inode: which file it is, but for anonymous ones, which share theirs.
    #[must_use]
    pub fn file(&self) -> (u64, Inode) {
        (self.stat.st_dev, self.inode())
    }

    /// The link in `/proc/PID/fd` as text.
    #[must_use]
    pub fn target(&self) -> &str {
        self.info.target.to_str().unwrap_or("")
    }

    /// The inode behind the description.
    #[must_use]
    pub fn inode(&self) -> Inode {
        Inode(self.stat.st_ino)
    }

    /// How an obstacle names this description: `fd 7 (what)`.
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

    /// What is known without the duplicate.
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

/// The kernel's mark of a name that is gone.
pub(super) const GONE: &str = " (deleted)";

/// The path a description was opened under, without the mark of a deleted file.
#[must_use]
pub fn path_of(description: &Known) -> PathBuf {
    PathBuf::from(description.target().trim_end_matches(GONE))
}
