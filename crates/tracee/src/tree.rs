//! Finds the processes of a subject.
//!
//! Owns: the search for the root processes and all their descendants.
//! Invariants: the roots come first, and parents before their children.
//! Does not: stop a process, so the result may be out of date immediately; `freeze` repeats the search until
//! it is stable.

use std::sync::Arc;

use model::{Pid, Tid};
use sys::{Errno, Result};

use crate::procfs::{self, KeptFiles};

/// Maximum number of processes of one subject. It limits the memory of this program if the subject is a fork
/// bomb.
pub const PROCESSES_MAX: usize = 32_768;

/// The root processes of a subject. No root descends from another root.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Roots {
    first: Pid,
    others: Arc<[Pid]>,
}

impl Roots {
    /// Returns the roots of a subject that has several root processes.
    #[must_use]
    pub fn new(first: Pid, others: impl IntoIterator<Item = Pid>) -> Self {
        Self { first, others: others.into_iter().collect() }
    }

    /// Returns the root that names the subject in messages.
    #[must_use]
    pub fn first(&self) -> Pid {
        self.first
    }

    /// Returns all roots.
    pub fn iter(&self) -> impl Iterator<Item = Pid> + use<'_> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Reports whether the process is a root.
    #[must_use]
    pub fn contains(&self, pid: Pid) -> bool {
        self.iter().any(|root| root == pid)
    }

    /// Returns the number of roots, which is never zero.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }
}

impl From<Pid> for Roots {
    fn from(root: Pid) -> Self {
        Self { first: root, others: Arc::default() }
    }
}

impl From<&Roots> for Roots {
    fn from(roots: &Roots) -> Self {
        roots.clone()
    }
}

/// Returns the roots and all their descendants, including zombies, with parents before their children.
pub fn descendants(roots: impl Into<Roots>) -> Result<Vec<Pid>> {
    let listed = listed(&roots.into(), |pid| Ok((procfs::children(pid)?, Vec::new())))?;
    Ok(listed.into_iter().map(|(pid, _)| pid).collect())
}

/// Returns the processes of [`descendants`], each with its threads, leader first. A process that has ended meanwhile has
/// no threads. Reads through the files that are kept open.
pub fn with_threads(files: &mut KeptFiles, roots: &Roots) -> Result<Vec<(Pid, Vec<Tid>)>> {
    listed(roots, |pid| {
        let threads = procfs::threads(pid)?;
        Ok((procfs::children_through(files, pid, &threads)?, threads))
    })
}

/// Lists a tree. `look` returns the children and the threads of a process.
fn listed(
    roots: &Roots,
    mut look: impl FnMut(Pid) -> Result<(Vec<Pid>, Vec<Tid>)>,
) -> Result<Vec<(Pid, Vec<Tid>)>> {
    let mut found: Vec<(Pid, Vec<Tid>)> = roots.iter().map(|root| (root, Vec::new())).collect();
    let mut next = 0;
    while next < found.len() && found.len() < PROCESSES_MAX {
        let pid = found[next].0;
        match look(pid) {
            Ok((children, threads)) => {
                found[next].1 = threads;
                found.extend(children.into_iter().map(|child| (child, Vec::new())));
            }
            // A descendant that has ended meanwhile has no children.
            Err(error)
                if next >= roots.count() && (error.errno == Errno::ENOENT || error.errno == Errno::ESRCH) => {
            }
            Err(error) => return Err(error),
        }
        next += 1;
    }
    Ok(found)
}
