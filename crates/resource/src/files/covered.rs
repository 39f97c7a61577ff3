//! Which files an undo log has taken back before a restore.
//!
//! Owns: the question whether a file is one of them.
//! Does not: take files back, or compare the others.

use std::collections::HashSet;

/// Files that are those of the checkpoint, since an undo log has taken them back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Covered {
    /// No file was taken back: all are compared.
    #[default]
    Nothing,
    /// All files but these, by device and inode: they could be changed without a trace, and are compared.
    AllBut(HashSet<(u64, u64)>),
}

impl Covered {
    /// Whether a file is as it was at the checkpoint, without a comparison.
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
    fn all_files_are_covered_but_those_that_are_named() {
        let covered = Covered::AllBut(HashSet::from([(1, 2)]));
        assert!(covered.has(1, 3) && covered.has(2, 2) && !covered.has(1, 2));
        assert!(!Covered::default().has(1, 3));
    }
}
