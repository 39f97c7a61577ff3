//! The state of the present epoch.
//!
//! An epoch is the time between two successive checkpoints. An image contains one complete checkpoint.
//!
//! Owns: names and inodes that were recorded in the epoch, the amount of recorded content, and the ways in which a file
//! can change.
//! Invariants: an inode is either old or created. An old inode existed when the epoch began, and is recorded. A created
//! inode was created in the epoch.
//! Does not: access files, or write records.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use crate::key::{Attributes, FileKey};
use crate::log::{DirectoryId, InodeId};

/// Device and inode number. A file that loses its last name is preserved by a hard link, so that its inode number is
/// not reused in the epoch. The inode number of a removed directory can be reused: see [`Old::gone`].
pub(super) type Id = (u64, u64);

/// The part of a file that is about to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Any part, at any later time: the file is being opened for writing.
    Any,
    /// Only content after the end of the file: the file is being opened for appending.
    End,
    /// All content after an offset in bytes.
    Behind(u64),
    /// A range: offset and length in bytes.
    Range(u64, u64),
    /// All content.
    All,
}

/// How a file can change in the next epoch without an open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum How {
    /// Content is only appended to the file.
    Appends,
    /// The file is written, and the writes are reported.
    Reports,
    /// The file is changed by stores through a mapping.
    Mapped,
    /// Any change is possible, without being reported. The image of the checkpoint contains the content of the file.
    OfImage,
}

/// A file that is open for writing or mapped at a boundary. A boundary ends one epoch and begins the next epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Armed {
    pub(super) key: FileKey,
    pub(super) attributes: Attributes,
    pub(super) how: How,
    pub(super) path: PathBuf,
}

/// The amount of old content of a file that is in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// No content. Nothing has changed yet.
    Untouched,
    /// No content. The file is only appended to, so that its old length is sufficient.
    Appends,
    /// Some pages.
    Pages(Pages),
    /// All content.
    Whole,
    /// No content. The image of the checkpoint contains the content.
    OfImage,
}

/// Pages of one file that are in the log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Pages {
    saved: HashMap<u64, u64>,
    /// Time that events of the file have taken in this epoch.
    pub(super) spent: Duration,
}

/// Bits of a word in the bitmap of saved pages.
const WORD: u64 = 64;

impl Pages {
    /// Marks pages as saved. Returns the pages of `first..end` that were not saved before, as rising ranges.
    pub(super) fn save(&mut self, first: u64, end: u64) -> Vec<(u64, u64)> {
        let mut missing: Vec<(u64, u64)> = Vec::new();
        for page in first..end {
            let word = self.saved.entry(page / WORD).or_default();
            let bit = 1 << (page % WORD);
            if *word & bit != 0 {
                continue;
            }
            *word |= bit;
            match missing.last_mut() {
                Some((_, last)) if *last == page => *last += 1,
                _ => missing.push((page, page + 1)),
            }
        }
        missing
    }

    /// Returns the pages of `first..end` that are not saved, as rising ranges. The run time depends on the number of
    /// saved pages, and not on the length of the range.
    pub(super) fn gaps(&self, first: u64, end: u64) -> Vec<(u64, u64)> {
        let mut words: Vec<u64> = self
            .saved
            .keys()
            .copied()
            .filter(|word| word * WORD < end && (word + 1) * WORD > first)
            .collect();
        words.sort_unstable();
        let mut gaps = Vec::new();
        let mut from = first;
        for word in words {
            for bit in (0..WORD).filter(|bit| self.saved[&word] & (1 << bit) != 0) {
                let page = word * WORD + bit;
                if page < first || page >= end {
                    continue;
                }
                if page > from {
                    gaps.push((from, page));
                }
                from = page + 1;
            }
        }
        if from < end {
            gaps.push((from, end));
        }
        gaps
    }
}

/// An inode that existed when the epoch began.
#[derive(Debug)]
pub(super) struct Old {
    pub(super) id: InodeId,
    /// Length in bytes when the epoch began.
    pub(super) size: u64,
    pub(super) content: Content,
    /// Whether a hard link preserves the inode, or the log contains the whole state of the inode.
    pub(super) is_kept: bool,
    /// The key of an inode that may have been removed and whose number can be reused. The key distinguishes the inode
    /// from the next inode with this number.
    pub(super) gone: Option<FileKey>,
}

/// The names of one directory that were recorded.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) id: DirectoryId,
    touched: HashSet<OsString>,
}

impl Names {
    pub(super) fn new(id: DirectoryId) -> Self {
        Self { id, touched: HashSet::new() }
    }

    /// Notes a recorded name. Returns `true` the first time in the epoch.
    pub(super) fn touch(&mut self, name: &OsStr) -> bool {
        !self.touched.contains(name) && self.touched.insert(name.to_owned())
    }

    pub(super) fn has(&self, name: &OsStr) -> bool {
        self.touched.contains(name)
    }
}

/// The present epoch.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    /// Whether a record was written after the records of the boundary at the beginning of the epoch.
    pub(super) is_touched: bool,
    /// The reason if the epoch is broken: no rollback across this epoch is possible.
    pub(super) broken: Option<String>,
    pub(super) directories: HashMap<FileKey, Names>,
    pub(super) inodes: HashMap<Id, Old>,
    pub(super) made: HashSet<Id>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_saved_once() {
        let mut pages = Pages::default();
        assert_eq!(pages.save(60, 70), [(60, 70)]);
        assert_eq!(pages.save(58, 72), [(58, 60), (70, 72)]);
        assert!(pages.save(58, 72).is_empty());
        assert_eq!(pages.save(0, 2), [(0, 2)]);
        assert_eq!(pages.gaps(1, 75), [(2, 58), (72, 75)]);
        assert_eq!(pages.gaps(58, 72), []);
        assert_eq!(Pages::default().gaps(0, 1 << 40), [(0, 1 << 40)]);
    }

    #[test]
    fn a_name_is_touched_once() {
        let mut names = Names::new(DirectoryId(1));
        assert!(names.touch(OsStr::new("a")));
        assert!(!names.touch(OsStr::new("a")));
        assert!(names.has(OsStr::new("a")) && !names.has(OsStr::new("b")));
    }
}
