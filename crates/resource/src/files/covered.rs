//! Files that the undo log has reverted before a restore.
//!
//! Owns: the set of these files.
//! Does not: revert files, or compare the others.

use std::collections::HashSet;

/// Files that the undo log has reverted to the checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Covered {
    /// No file was reverted: all are compared.
    #[default]
    Nothing,
    /// All files but these, by device and inode: they could be changed without a record in the log, and are compared.
    AllBut(HashSet<(u64, u64)>),
}

impl Covered {
    /// Whether a file needs no comparison, since it was reverted.
    #[must_use]
    pub fn has(&self, device: u64, inode: u64) -> bool {
        match self {
            Self::Nothing => false,
            Self::AllBut(uncovered) => !uncovered.contains(&(device, inode)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_except_the_named_ones_are_covered() {
        let covered = Covered::AllBut(HashSet::from([(1, 2)]));
        assert!(covered.has(1, 3) && covered.has(2, 2) && !covered.has(1, 2));
        assert!(!Covered::default().has(1, 3));
    }
}
