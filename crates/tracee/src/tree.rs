//! The processes of a subject.
//!
//! Owns: discovery of a process and all its descendants.
//! Invariants: parents come before their children.
//! Does not: stop anything, so the result may be stale immediately; `freeze` repeats it until it is stable.

use model::Pid;
use sys::{Errno, Result};

use crate::procfs;

/// Most processes of one subject; a fork bomb ends here instead of in our memory.
pub const PROCESSES_MAX: usize = 32_768;

/// A process and all its descendants, zombies included, parents first.
pub fn descendants(root: Pid) -> Result<Vec<Pid>> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() && found.len() < PROCESSES_MAX {
        match procfs::children(found[next]) {
            Ok(children) => found.extend(children),
            // A descendant that ended meanwhile has no children left.
            Err(error) if next > 0 && (error.errno == Errno::ENOENT || error.errno == Errno::ESRCH) => {}
            Err(error) => return Err(error),
        }
        next += 1;
    }
    Ok(found)
}
