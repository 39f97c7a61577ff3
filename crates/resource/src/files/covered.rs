//! Files that the undo log has reverted to the checkpoint before a restore.
//!
//! The undo log records the former content of a file before a change of the file.
//!
//! Owns: the set of reverted files.
//! Does not: revert files, or compare files that were not reverted.

use std::collections::HashSet;

/// The set of files that the undo log has reverted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Covered {
    /// No file was reverted. All files are compared.
    #[default]
    Nothing,
    /// All files were reverted, except the given files (device and inode). The given files are compared, because a
    /// change of such a file may have no record in the undo log.
    AllBut(HashSet<(u64, u64)>),
}

impl Covered {
    /// Reports whether a file needs no comparison because the file was reverted.
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
