//! Which descriptors refer to one open file description, by the order that kcmp(2) gives them.
//!
//! Owns: the search for a description, and the check that all that is held are different ones.
//! Invariants: n descriptors of one file are told apart in n log n comparisons.
//! Does not: list descriptors.

use std::cmp::Ordering;
use std::os::fd::AsRawFd;

use model::{Fd, Pid};
use resource::fd::Known;
use sys::kcmp;

use super::{Descriptors, is_gone, ourselves};
use crate::error::Result;

impl Descriptors {
    /// Finds the description of a descriptor by binary search: its index in `candidates`, or where it belongs.
    /// Candidates whose descriptor the subject has closed meanwhile are removed.
    pub(super) fn search(
        &self,
        candidates: &mut Vec<usize>,
        place: (Pid, Fd),
    ) -> sys::Result<std::result::Result<usize, usize>> {
        let (mut low, mut high) = (0, candidates.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let candidate = self.comparable(&self.known[candidates[middle]]);
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

    /// A descriptor of a description for kcmp(2). Where there is no duplicate, it is the one that the description was
    /// found under, which may refer to another description by now.
    fn comparable(&self, known: &Known) -> (Pid, Fd) {
        match self.open.get(known.id.get() as usize) {
            Some(open) => (ourselves(), Fd(open.duplicate.as_raw_fd())),
            None => (known.pid, known.fd),
        }
    }

    /// Whether a descriptor of the subject refers to a description.
    pub(super) fn is_same(&self, known: &Known, place: (Pid, Fd)) -> sys::Result<bool> {
        Ok(kcmp::compare_files(place, self.comparable(known))? == Ordering::Equal)
    }

    /// Whether all that is held are different descriptions, as they were when they were listed: where several are of
    /// one file, one may have been put in another's place.
    pub(super) fn are_distinct(&self) -> Result<bool> {
        for group in &self.groups {
            let mut numbers: Vec<_> =
                group.iter().map(|index| Fd(self.open[*index].duplicate.as_raw_fd())).collect();
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
