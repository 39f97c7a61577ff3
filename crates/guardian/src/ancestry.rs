//! Processes that are not stopped: kernel threads, and trees that contain this very program.
//!
//! Owns: the refusal of a kernel thread, and of a tree that we are in: we could never let it go on; ancestors.
//! Does not: look further up than the ancestors of one process.

use model::Pid;
use tracee::procfs;

use crate::error::{GuardianError, Result};

/// Longest line of ancestors that is followed; a longer one is no line but a race.
const ANCESTORS_MAX: usize = 10_000;

/// Refuses a root that is a kernel thread, and one whose tree we are in.
pub(crate) fn refuse(root: Pid) -> Result<()> {
    refuse_kernel_thread(root)?;
    if contains_us(root) { Err(GuardianError::OwnTree { pid: root }) } else { Ok(()) }
}

/// Refuses a kernel thread. A process that is not there passes.
pub(crate) fn refuse_kernel_thread(pid: Pid) -> Result<()> {
    match procfs::stat(pid) {
        Ok(stat) if stat.is_kernel_thread() => Err(GuardianError::KernelThread { pid, name: stat.comm }),
        _ => Ok(()),
    }
}

/// Whether a process is this one or an ancestor of it.
pub(crate) fn contains_us(root: Pid) -> bool {
    line(Pid(std::process::id() as i32)).any(|pid| pid == root)
}

/// A process and its ancestors, the youngest first.
pub(crate) fn line(pid: Pid) -> impl Iterator<Item = Pid> {
    let parent = |pid: &Pid| procfs::stat(*pid).ok().map(|stat| stat.ppid).filter(|parent| parent.get() > 0);
    std::iter::successors(Some(pid), parent).take(ANCESTORS_MAX)
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
