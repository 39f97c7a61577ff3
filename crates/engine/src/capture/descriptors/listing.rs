//! The descriptor tables of all processes: which descriptors refer to the same open file description.
//!
//! Owns: the rows of the tables, and the descriptions; the search for a description in the order that kcmp(2)
//! defines; the check that all held descriptions differ.
//! Invariants: n descriptors of one file need at most about n log n comparisons.
//! Does not: hold duplicates, or read fdinfo.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};
use resource::fd::{Description, Known};
use sys::{Errno, Error, kcmp};

use crate::error::Result;

/// Indices of descriptions by device and inode. Each list is in the order of kcmp(2), so that a search in n
/// descriptions needs log n comparisons.
pub(super) type ByFile = HashMap<(u64, Inode), Vec<usize>>;

/// The descriptors of a subject at the last listing.
#[derive(Default)]
pub(super) struct Listing {
    /// All descriptors, sorted by process (in tree order) and fd.
    pub(super) rows: Vec<(Pid, Fd, DescriptionId)>,
    pub(super) known: Vec<Arc<Known>>,
    /// The number of descriptions in `known` that a descriptor of the subject refers to. They precede the
    /// hidden descriptions.
    pub(super) held: usize,
    /// Groups of held descriptions that refer to the same file. A file with only one description has no
    /// group.
    groups: Vec<Vec<usize>>,
}

impl Listing {
    /// Ends the listing, when all descriptors are listed.
    pub(super) fn end(&mut self, files: ByFile) {
        self.held = self.known.len();
        self.groups = files.into_values().filter(|group| group.len() > 1).collect();
    }

    /// Reports whether there are hidden descriptions, which no descriptor refers to.
    pub(super) fn has_hidden(&self) -> bool {
        self.known.len() > self.held
    }

    pub(super) fn forget_hidden(&mut self) {
        self.known.truncate(self.held);
    }

    /// Replaces the hidden descriptions with the descriptions that follow the held ones in `open`.
    pub(super) fn set_hidden(&mut self, open: &[Description]) {
        self.forget_hidden();
        self.known.extend(open[self.held..].iter().map(|open| Arc::clone(open.known())));
    }

    /// Finds the description of a descriptor by binary search. Returns its index in `candidates`, or the
    /// index at which to insert it. Removes a candidate from `candidates` if the subject has closed its
    /// descriptor.
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
                        // The candidate still exists, so the descriptor at `place` was closed.
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

    /// Reports whether the descriptor at `place` refers to the description `known`.
    pub(super) fn is_same(&self, open: &[Description], known: &Known, place: (Pid, Fd)) -> sys::Result<bool> {
        Ok(kcmp::compare_files(place, comparable(open, known))? == Ordering::Equal)
    }

    /// Reports whether all held descriptions still differ from each other. Without this check, a description
    /// could be replaced by another description of the same file unnoticed.
    pub(super) fn are_distinct(&self, open: &[Description]) -> Result<bool> {
        for group in &self.groups {
            let mut numbers: Vec<_> =
                group.iter().map(|index| Fd(open[*index].duplicate.as_raw_fd())).collect();
            let compare =
                |one: &Fd, other: &Fd| kcmp::compare_files((ourselves(), *one), (ourselves(), *other));
            let mut failure = None;
            // The kernel's order of descriptions is total, so equal descriptions become neighbours.
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

/// Returns a descriptor of a description for kcmp(2). Without a duplicate, returns the descriptor under which
/// the description was found. The subject may have reused that fd for another description.
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
