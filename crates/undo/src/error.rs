//! Errors of this crate.
//!
//! Owns: what can go wrong while files are watched, kept or taken back.
//! Invariants: an error that names a path shows it without control characters.
//! Does not: decide what follows.

use std::path::{Path, PathBuf};

use model::{ByteCount, Escaped, Sequence};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, UndoError>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] sys::Error),

    /// The directory of the log cannot be used.
    #[error(transparent)]
    Store(store::Error),

    /// The newest epoch alone is larger than the log may be.
    #[error("the undo log would need {needed} bytes for one epoch, and may take {max}")]
    Full {
        /// Bytes that it would need.
        needed: ByteCount,
        /// Bytes that it may take.
        max: ByteCount,
    },

    /// A write failed and could not be taken back: the present epoch takes no more records.
    #[error("the undo log in {} has a torn record", shown(directory))]
    Torn {
        /// The log's directory.
        directory: PathBuf,
    },

    /// A keep directory can be another user's, or is that of another log.
    ///
    /// Row: undo-keep-foreign
    #[error(
        "{} is not a keep directory of this undo log\nhelp: find out how it came there, then remove it; undying makes \
         it with mode 0700",
        shown(path)
    )]
    ForeignKeep {
        /// The directory.
        path: PathBuf,
    },

    /// The log does not lead to a checkpoint.
    ///
    /// Row: undo-unreachable
    #[error(
        "files cannot go back to checkpoint {to}: {why}\nhelp: `undying ls NAME` lists the checkpoints; restore a \
         later one, or restore with files as they are: --files keep"
    )]
    Unreachable {
        /// The checkpoint.
        to: Sequence,
        /// Why.
        why: String,
    },
}

/// A path as messages show it.
pub(crate) fn shown(path: &Path) -> String {
    Escaped(&path.to_string_lossy()).to_string()
}
