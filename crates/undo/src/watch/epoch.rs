//! The state of the present epoch.
//!
//! This module remembers what is already recorded in the present epoch, because the log needs only the state at the
//! beginning of the epoch.
//!
//! Owns: the lists of recorded names, inodes and pages, and the types for the ways in which a file can change.
//! Invariants: a name, inode or page is in a list only after its record was written. If a record fails, the next
//! attempt thus writes the record. A known inode is either old or created. An old inode existed when the epoch began,
//! and has a record. A created inode was created in this epoch, and needs no record.
//! Does not: access files, or write records.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use model::{Address, AddressRange, RangeSet};
use rustix::fs::FileType;

use crate::key::{Attributes, FileKey};
use crate::log::{DirectoryId, InodeId};
use crate::rights::{Aspects, Rights, RightsId, Touch};

/// Device and inode number. Before an old file loses a name, the watch creates a hard link of the file. The inode
/// number of the file is thus not reused in the epoch. The inode number of a removed directory, or of a file without
/// such a link, can be reused: see [`Old::gone`].
pub(super) type Id = (u64, u64);

/// The part of a file that is about to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Unknown: the file is being opened for writing, and any part can change at any time afterwards.
    Any,
    /// Unknown, as [`Self::Any`]. Writes can bypass the page cache (O_DIRECT).
    Direct,
    /// Only content after the present end: the file is being opened for appending.
    End,
    /// All content after an offset in bytes.
    Behind(u64),
    /// A range: offset and length in bytes.
    Range(u64, u64),
    /// All content.
    All,
}

/// How a file that is open or mapped at a boundary can change in the next epoch without being opened again. If a file
/// can change in several ways, the last of these variants applies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum How {
    /// Content is only appended to the file.
    Appends,
    /// The file can be written, and fanotify(7) reports each write.
    Reports,
    /// Stores through a mapping can change the file. Stores are not reported.
    Mapped,
    /// Stores through a mapping can change the file. The watch has a copy of the file, and learns which pages change.
    Tracked,
    /// Any change is possible, and no change is reported. The image of the checkpoint contains the content of the file.
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

/// Which part of the old content of a file is recorded in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// No content, because no content has changed yet.
    Untouched,
    /// No content, because content is only appended to the file. A rollback needs only the old length.
    Appends,
    /// Some pages.
    Pages(Pages),
    /// Some pages. A copy of the file contains the other pages.
    Shadow(Pages),
    /// All content.
    Whole,
    /// No content, because the image of the checkpoint contains the content.
    OfImage,
}

impl Content {
    /// Returns the state of a file with these attributes whose content is not recorded yet.
    pub(super) fn at_first(attributes: &Attributes) -> Self {
        let has_content = attributes.kind() == FileType::RegularFile && attributes.size > 0;
        if has_content { Self::Untouched } else { Self::Whole }
    }
}

/// The pages of one file that are recorded in the log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Pages {
    /// The numbers of the pages, as addresses.
    saved: RangeSet,
    /// The time that handling content events of the file has taken in this epoch.
    pub(super) spent: Duration,
}

impl Pages {
    /// Marks the pages `first..end` as saved, after their content was recorded.
    pub(super) fn note(&mut self, first: u64, end: u64) {
        self.saved.insert(AddressRange::new(Address(first), Address(end)));
    }

    /// Returns the pages of `first..end` that are not marked as saved, as rising ranges.
    pub(super) fn gaps(&self, first: u64, end: u64) -> Vec<(u64, u64)> {
        let gaps = self.saved.gaps(AddressRange::new(Address(first), Address(end)));
        gaps.map(|gap| (gap.start.get(), gap.end.get())).collect()
    }
}

/// An inode that existed when the epoch began.
#[derive(Debug)]
pub(super) struct Old {
    pub(super) id: InodeId,
    /// Length in bytes before the first change of the content in the epoch.
    pub(super) size: u64,
    pub(super) content: Content,
    /// Whether a hard link preserves the inode, or the log contains the whole state of the inode.
    pub(super) is_kept: bool,
    /// The recorded changes.
    pub(super) touched: Vec<Touch>,
    /// The key of this inode, if the inode may have been removed and its inode number can be reused. A new inode with
    /// the same number has another key.
    pub(super) gone: Option<FileKey>,
}

impl Old {
    /// Reports whether a change of these aspects is recorded.
    pub(super) fn touches(&self, aspects: Aspects) -> bool {
        self.touched.iter().any(|touch| touch.aspects.contains(aspects))
    }
}

/// The names of one directory that were recorded.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) id: DirectoryId,
    /// The recorded names, with the rights of the recorded changes.
    touched: HashMap<OsString, Vec<RightsId>>,
}

/// What the log knows about the change of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Touched {
    /// Nothing.
    Never,
    /// A change with other rights.
    WithOtherRights,
    /// A change with these rights, or with the rights of this program.
    Known,
}

impl Names {
    pub(super) fn new(id: DirectoryId) -> Self {
        Self { id, touched: HashMap::new() }
    }

    /// Returns what was recorded in this epoch about a change of a name with some rights.
    pub(super) fn touched(&self, name: &OsStr, by: RightsId) -> Touched {
        match self.touched.get(name) {
            None => Touched::Never,
            Some(known) if known.contains(&by) || known.contains(&RightsId::OWN) => Touched::Known,
            Some(_) => Touched::WithOtherRights,
        }
    }

    /// Marks a name as recorded with some rights, after the record was written.
    pub(super) fn note(&mut self, name: &OsStr, by: RightsId) {
        self.touched.entry(name.to_owned()).or_default().push(by);
    }

    pub(super) fn has(&self, name: &OsStr) -> bool {
        self.touched.contains_key(name)
    }
}

/// The present epoch.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    /// Whether a change was recorded in this epoch. The records that the boundary writes at the beginning of the epoch
    /// do not count.
    pub(super) is_touched: bool,
    /// The reason why the epoch is broken; `None` if the epoch is not broken.
    pub(super) broken: Option<String>,
    pub(super) directories: HashMap<FileKey, Names>,
    pub(super) inodes: HashMap<Id, Old>,
    pub(super) made: HashSet<Id>,
    /// The ids of recorded rights.
    pub(super) rights: HashMap<Rights, RightsId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_saved_once() {
        let mut pages = Pages::default();
        assert_eq!(pages.gaps(60, 70), [(60, 70)]);
        pages.note(60, 70);
        assert_eq!(pages.gaps(58, 72), [(58, 60), (70, 72)]);
        pages.note(58, 72);
        assert!(pages.gaps(58, 72).is_empty());
        pages.note(0, 2);
        assert_eq!(pages.gaps(1, 75), [(2, 58), (72, 75)]);
        assert_eq!(pages.gaps(58, 72), []);
        assert_eq!(Pages::default().gaps(0, 1 << 40), [(0, 1 << 40)]);
    }

    #[test]
    fn a_name_is_touched_once_with_the_same_rights() {
        let mut names = Names::new(DirectoryId(1));
        assert_eq!(names.touched(OsStr::new("a"), RightsId(1)), Touched::Never);
        names.note(OsStr::new("a"), RightsId(1));
        assert_eq!(names.touched(OsStr::new("a"), RightsId(1)), Touched::Known);
        assert_eq!(names.touched(OsStr::new("a"), RightsId::OWN), Touched::WithOtherRights);
        names.note(OsStr::new("a"), RightsId::OWN);
        assert_eq!(names.touched(OsStr::new("a"), RightsId(2)), Touched::Known);
        assert!(names.has(OsStr::new("a")) && !names.has(OsStr::new("b")));
    }
}
