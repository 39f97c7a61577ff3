//! The descriptor tables of all processes: which descriptors refer to one open file description.
//!
//! Owns: the rows of the tables, the descriptions; the search for a description in the order that kcmp(2) defines, and
//! the check that all held descriptions differ.
//! Invariants: n descriptors of one file are compared n log n times.
//! Does not: hold duplicates, or read fdinfo.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};
use resource::fd::{Description, Known};
use sys::{Errno, Error, kcmp};

use crate::error::Result;

/// Indices of descriptions by file, each list in the order of kcmp(2): finding one among n takes log n comparisons.
pub(super) type ByFile = HashMap<(u64, Inode), Vec<usize>>;

/// The descriptors of a subject, as they were listed last.
#[derive(Default)]
pub(super) struct Listing {
    /// Rising by process in tree order, then by number.
    pub(super) rows: Vec<(Pid, Fd, DescriptionId)>,
    pub(super) known: Vec<Arc<Known>>,
    /// How many of them, the first ones, some process has a descriptor of.
    pub(super) held: usize,
    /// Which of those that are held are several of one file.
    groups: Vec<Vec<usize>>,
}

impl Listing {
    /// All descriptors are listed.
    pub(super) fn end(&mut self, files: ByFile) {
        self.held = self.known.len();
        self.groups = files.into_values().filter(|group| group.len() > 1).collect();
    }

    /// Whether there are descriptions that no descriptor refers to.
    pub(super) fn has_hidden(&self) -> bool {
        self.known.len() > self.held
    }

    pub(super) fn forget_hidden(&mut self) {
        self.known.truncate(self.held);
    }

    /// Takes those that follow the others among the duplicates.
    pub(super) fn set_hidden(&mut self, open: &[Description]) {
        self.forget_hidden();
        self.known.extend(open[self.held..].iter().map(|open| Arc::clone(open.known())));
    }

    /// Finds the description of a descriptor by binary search: its index in `candidates`, or where it belongs.
    /// Candidates whose descriptor the subject has closed meanwhile are removed.
    pub(super) fn search(
        &self,
        open: &[Description],
        candidates: &mut Vec<usize>,
        place: (Pid, Fd),
    ) -> sys::Result<std::result::Result<usize, usize>> {
        let (mut low, mut high) = (0, candidates.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let candidate = comparable(open, &self.known[candidates[middle]]);
            match kcmp::compare_files(place, candidate) {
                Ok(Ordering::Equal) => return Ok(Ok(middle)),
                Ok(Ordering::Less) => high = middle,
                Ok(Ordering::Greater) => low = middle + 1,
                Err(error) if is_gone(&error) => {
                    if kcmp::compare_files(candidate, candidate).is_ok() {
                        // The descriptor in question is the one that was closed.
                        return Err(error);
                    }
                    candidates.remove(middle);
                    high -= 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Err(low))
    }

    /// Whether a descriptor of the subject refers to a description.
    pub(super) fn is_same(&self, open: &[Description], known: &Known, place: (Pid, Fd)) -> sys::Result<bool> {
        Ok(kcmp::compare_files(place, comparable(open, known))? == Ordering::Equal)
    }

    /// Whether all that is held are different descriptions, as they were when they were listed: where several are of
    /// one file, one may have been put in another's place.
    pub(super) fn are_distinct(&self, open: &[Description]) -> Result<bool> {
        for group in &self.groups {
            let mut numbers: Vec<_> =
                group.iter().map(|index| Fd(open[*index].duplicate.as_raw_fd())).collect();
            let compare =
                |one: &Fd, other: &Fd| kcmp::compare_files((ourselves(), *one), (ourselves(), *other));
            let mut failure = None;
            // The kernel's order of descriptions is one: what is equal comes to stand side by side.
            numbers.sort_unstable_by(|one, other| {
                compare(one, other).unwrap_or_else(|error| {
                    failure = Some(error);
                    Ordering::Equal
                })
            });
            if let Some(error) = failure {
                return Err(error.into());
            }
            for pair in numbers.windows(2) {
                if compare(&pair[0], &pair[1])?.is_eq() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// A descriptor of a description for kcmp(2). Where there is no duplicate, it is the one that the description was found
/// under, which may refer to another description by now.
fn comparable(open: &[Description], known: &Known) -> (Pid, Fd) {
    match open.get(known.id.get() as usize) {
        Some(open) => (ourselves(), Fd(open.duplicate.as_raw_fd())),
        None => (known.pid, known.fd),
    }
}

pub(super) fn ourselves() -> Pid {
    Pid(std::process::id() as i32)
}

pub(super) fn is_gone(error: &Error) -> bool {
    matches!(error.errno, Errno::ESRCH | Errno::ENOENT | Errno::EBADF)
}
