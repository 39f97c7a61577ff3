//! What is known of the present epoch.
//!
//! Owns: the names and inodes that were recorded since the epoch began, and how much of their content was; what can
//! change in a file, by a call and without one.
//! Invariants: an inode is either old (it existed when the epoch began, and is recorded) or made in the epoch.
//! Does not: look at files or write records.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use crate::key::{Attributes, FileKey};
use crate::log::{DirectoryId, InodeId};

/// Device and inode number. A file that loses its last name is kept by a link, so that its number is not used again
/// within the epoch. A directory is not: see `Old::gone`.
pub(super) type Id = (u64, u64);

/// What is about to be changed in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Anything, at any time from now on: it is being opened for writing.
    Any,
    /// Only what is behind its end: it is being opened to append.
    End,
    /// All behind an offset.
    Behind(u64),
    /// A range: offset and length in bytes.
    Range(u64, u64),
    /// All of it.
    All,
}

/// What can happen to a file in the next epoch without an open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum How {
    /// It is only appended to.
    Appends,
    /// Writes, which it reports.
    Reports,
    /// Stores through a mapping.
    Mapped,
    /// Anything, without a report: the image has its content.
    OfImage,
}

/// A file that is open for writing or mapped at a boundary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Armed {
    pub(super) key: FileKey,
    pub(super) attributes: Attributes,
    pub(super) how: How,
    pub(super) path: PathBuf,
}

/// How much of the old content of a file is in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// Nothing, and nothing was changed yet.
    Untouched,
    /// Nothing: the file is only appended to, and its old length is enough.
    Appends,
    /// Some pages.
    Pages(Pages),
    /// All of it.
    Whole,
    /// Nothing: the image of the checkpoint has it.
    OfImage,
}

/// Pages of one file that are in the log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Pages {
    saved: HashMap<u64, u64>,
    /// Time that events of the file have taken in this epoch.
    pub(super) spent: Duration,
}

/// Bits of a word.
const WORD: u64 = 64;

impl Pages {
    /// The part of `first..end` that is not saved, as rising ranges; they count as saved from now on.
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

    /// The part of `first..end` that is not saved, as rising ranges, in time that grows with what is saved.
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
    /// Length when the epoch began.
    pub(super) size: u64,
    pub(super) content: Content,
    /// A keep directory has a link to it, or all of it is in the log.
    pub(super) is_kept: bool,
    /// It may be gone, and nothing holds its number: the key that tells it from the next inode with that number.
    pub(super) gone: Option<FileKey>,
}

/// Names of one directory that were recorded.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) id: DirectoryId,
    touched: HashSet<OsString>,
}

impl Names {
    pub(super) fn new(id: DirectoryId) -> Self {
        Self { id, touched: HashSet::new() }
    }

    /// `true` the first time in the epoch.
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
    /// Something was recorded after the records of the boundary itself.
    pub(super) is_touched: bool,
    /// Why the way back through it is lost.
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
