//! Finds the processes of a subject.
//!
//! Owns: the search for a process and all its descendants.
//! Invariants: parents come before their children.
//! Does not: stop a process, so the result may be out of date immediately; `freeze` repeats the search until
//! it is stable.

use model::Pid;
use sys::{Errno, Result};

use crate::procfs;

/// Maximum number of processes of one subject. It limits the memory of this program if the subject is a fork
/// bomb.
pub const PROCESSES_MAX: usize = 32_768;

/// Returns a process and all its descendants, including zombies, with parents before their children.
pub fn descendants(root: Pid) -> Result<Vec<Pid>> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() && found.len() < PROCESSES_MAX {
        match procfs::children(found[next]) {
            Ok(children) => found.extend(children),
            // A descendant that has ended meanwhile has no children.
            Err(error) if next > 0 && (error.errno == Errno::ENOENT || error.errno == Errno::ESRCH) => {}
            Err(error) => return Err(error),
        }
        next += 1;
    }
    Ok(found)
}
