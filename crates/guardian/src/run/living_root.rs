//! Finds the living root of a component whose guardian has died before it could write the status, for example because the
//! disk was full. A component is one subject (a protected process tree) of a system.
//!
//! All processes of a component have a mark: the value of `UNDYING_SOCKET` in their environment. The mark stays the same
//! over all runs of the component, so that an old status file still names the mark.
//!
//! Owns: this search.
//! Invariants: a process that could be another member of the tree is not returned.
//! Does not: find a root that has overwritten its environment.

use std::collections::HashSet;

use model::{Pid, ProcessKey};
use tracee::procfs;

use super::leftovers::{self, recognised};

/// Returns the root among the living processes with a mark. The root of a component leads a session, and its parent does
/// not have the mark. Returns `None` if several processes meet these conditions.
pub(crate) fn with_mark(mark: &str) -> Option<ProcessKey> {
    let marked: HashSet<Pid> = recognised(mark, None).into_iter().collect();
    let stats = marked.iter().filter_map(|pid| procfs::stat(*pid).ok()).filter(|stat| !stat.is_zombie());
    let mut roots = stats.filter(|stat| stat.session == stat.pid && !marked.contains(&stat.ppid));
    let root = roots.next()?.key();
    roots.next().is_none().then_some(root)
}

/// Reports whether a process has a mark.
pub(super) fn has_mark(pid: Pid, mark: &str) -> bool {
    !mark.is_empty() && leftovers::mark_of(pid).is_some_and(|own| own == mark.as_bytes())
}
