//! Processes that have left the tree of a subject, by checkpoint.
//!
//! Owns: the checkpoint since which a process counts as departed, and the interval between two lists.
//! Invariants: a process counts for a checkpoint only if it had left the tree before the subject was stopped for this
//! checkpoint. The restored program then finds the process running, and does not start it a second time.
//! Does not: find, end or reap processes; `leftovers` does.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use model::{ProcessKey, Sequence};

/// Minimum interval between two lists of the guardian's children. Making a list takes some microseconds per thread.
const LIST_EVERY: Duration = Duration::from_millis(100);

/// The processes that have left the tree, and that no checkpoint contains.
#[derive(Debug, Default)]
pub(super) struct Departed {
    found: HashMap<ProcessKey, Since>,
    listed: Option<Instant>,
}

/// When a process left the tree, compared with the stop for a checkpoint.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// The process was found at this checkpoint. It may have been part of the tree when the subject was stopped.
    FoundAt(Sequence),
    /// The process had left the tree before the subject was stopped for this checkpoint.
    Before(Sequence),
}

impl Departed {
    /// Reports whether another list is due, and records the time of this list.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.listed.is_none_or(|listed| now.duration_since(listed) >= LIST_EVERY);
        if is_due {
            self.listed = Some(now);
        }
        is_due
    }

    /// Records the list of departed processes at a checkpoint. Returns the processes that are new in the list.
    pub(super) fn note(&mut self, sequence: Sequence, listed: &[ProcessKey]) -> Vec<ProcessKey> {
        self.found.retain(|key, _| listed.contains(key));
        let mut new = Vec::new();
        for key in listed {
            match self.found.get_mut(key) {
                None => {
                    self.found.insert(*key, Since::FoundAt(sequence));
                    new.push(*key);
                }
                Some(since) => {
                    if matches!(since, Since::FoundAt(found) if *found < sequence) {
                        *since = Since::Before(sequence);
                    }
                }
            }
        }
        new
    }

    /// Returns the processes that had left the tree before a checkpoint.
    pub(super) fn before(&self, checkpoint: Sequence) -> HashSet<ProcessKey> {
        let is_older = |since: &Since| matches!(since, Since::Before(sequence) if *sequence <= checkpoint);
        self.found.iter().filter(|(_, since)| is_older(since)).map(|(key, _)| *key).collect()
    }

    /// Forgets all processes, because the program starts from its beginning.
    pub(super) fn forget(&mut self) {
        self.found.clear();
    }
}

#[cfg(test)]
mod tests {
    use model::{Pid, StartTime};

    use super::*;

    fn key(pid: i32) -> ProcessKey {
        ProcessKey { pid: Pid(pid), start: StartTime(7) }
    }

    #[test]
    fn a_process_counts_from_the_checkpoint_after_the_one_that_found_it() {
        let mut departed = Departed::default();
        assert_eq!(departed.note(Sequence(3), &[key(10)]), [key(10)]);
        assert!(departed.before(Sequence(3)).is_empty());
        assert_eq!(departed.note(Sequence(4), &[key(10), key(11)]), [key(11)]);
        assert_eq!(departed.before(Sequence(4)), HashSet::from([key(10)]));
        assert!(departed.before(Sequence(3)).is_empty(), "an older checkpoint may start it again");
        departed.note(Sequence(5), &[key(11)]);
        assert_eq!(departed.before(Sequence(9)), HashSet::from([key(11)]), "one that has ended is gone");
        departed.forget();
        assert!(departed.before(Sequence(9)).is_empty());
    }

    #[test]
    fn lists_are_some_time_apart() {
        let mut departed = Departed::default();
        let now = Instant::now();
        assert!(departed.is_due(now));
        assert!(!departed.is_due(now + LIST_EVERY / 2));
        assert!(departed.is_due(now + LIST_EVERY));
    }
}
