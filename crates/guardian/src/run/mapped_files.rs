//! The program files, libraries and other mapped files that the checkpoints of a subject need. A restore finds a file by
//! its open descriptor, even if a package upgrade has replaced the file since the checkpoint.
//!
//! Owns: for how long the descriptors of each checkpoint stay open.
//! Invariants: the files of the newest durable checkpoint, and of all later checkpoints, are open. They stay open while
//! the program is dead.
//! Does not: open the files; the engine does.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use model::Sequence;
use store::EPOCHS_IN_FLIGHT_MAX;

#[derive(Clone, Debug, Default)]
pub(super) struct MappedFiles {
    /// The files of each checkpoint, in rising order of the checkpoints.
    points: VecDeque<(Sequence, Vec<Arc<OwnedFd>>)>,
}

impl MappedFiles {
    /// Adds the files of a captured checkpoint. Consecutive checkpoints share their descriptors. Beside the newest
    /// durable checkpoint, at most [`EPOCHS_IN_FLIGHT_MAX`] checkpoints can become durable.
    pub(super) fn taken(&mut self, sequence: Sequence, files: Vec<Arc<OwnedFd>>) {
        if self.points.len() > EPOCHS_IN_FLIGHT_MAX {
            // The checkpoint after the newest durable one. The log could not write it.
            self.points.remove(1);
        }
        self.points.push_back((sequence, files));
    }

    /// Closes files that only earlier checkpoints need.
    pub(super) fn committed(&mut self, sequence: Sequence) {
        while self.points.front().is_some_and(|(first, _)| *first < sequence) {
            self.points.pop_front();
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<OwnedFd>> {
        let mut all: Vec<Arc<OwnedFd>> = Vec::new();
        for (_, files) in &self.points {
            let new = |file: &&Arc<OwnedFd>| !all.iter().any(|known| Arc::ptr_eq(known, file));
            let new: Vec<_> = files.iter().filter(new).cloned().collect();
            all.extend(new);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_newest_durable_checkpoint_stay_open() {
        let file = || Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        let (old, shared, new) = (file(), file(), file());
        let mut mapped = MappedFiles::default();
        mapped.taken(Sequence(1), vec![Arc::clone(&old), Arc::clone(&shared)]);
        mapped.taken(Sequence(2), vec![Arc::clone(&shared)]);
        mapped.taken(Sequence(3), vec![Arc::clone(&shared), Arc::clone(&new)]);
        assert_eq!(mapped.all().len(), 3);
        mapped.committed(Sequence(2));
        assert_eq!((Arc::strong_count(&old), mapped.all().len()), (1, 2));
        mapped.committed(Sequence(3));
        assert_eq!(mapped.all().len(), 2);
    }
}
