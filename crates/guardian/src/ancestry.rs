//! Whether a process tree contains this very program.
//!
//! Owns: the refusal to stop a tree that we are in: we could never let it go on.
//! Does not: look further up than our own ancestors.

use model::Pid;
use tracee::procfs;

use crate::error::{GuardianError, Result};

/// Longest line of ancestors that is followed; a longer one is no line but a race.
const ANCESTORS_MAX: usize = 10_000;

/// Refuses a root whose tree we are in.
pub(crate) fn refuse(root: Pid) -> Result<()> {
    if contains_us(root) { Err(GuardianError::OwnTree { pid: root }) } else { Ok(()) }
}

/// Whether a process is this one or an ancestor of it.
pub(crate) fn contains_us(root: Pid) -> bool {
    let mut pid = Pid(std::process::id() as i32);
    for _ in 0..ANCESTORS_MAX {
        if pid == root {
            return true;
        }
        match procfs::stat(pid) {
            Ok(stat) if stat.ppid.get() > 0 => pid = stat.ppid,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_in_our_own_tree_and_in_that_of_our_parent() {
        let own = Pid(std::process::id() as i32);
        assert!(contains_us(own));
        assert!(contains_us(procfs::stat(own).unwrap().ppid));
        assert!(!contains_us(Pid(i32::MAX)));
    }
}
