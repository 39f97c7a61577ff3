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

    /// A file system gives its files no handles.
    #[error(
        "files below {} have no handles to be found by (overlayfs gives them with the mount options \
         index=on,nfs_export=on)",
        shown(mount)
    )]
    NoHandles {
        /// Where it is mounted.
        mount: PathBuf,
    },

    /// The directory holds no epoch of a log.
    #[error("there is no undo log in {}", shown(directory))]
    NoLog {
        /// The directory.
        directory: PathBuf,
    },

    /// Files have been changed since the subject has ended. Nothing was touched.
    ///
    /// Row: undo-conflict
    #[error(
        "files were changed after the program had ended: {}\nhelp: save what you changed and restore again; or, to \
         have these files go back as well: --files force",
        listed(paths)
    )]
    Conflict {
        /// All of them.
        paths: Vec<PathBuf>,
    },

    /// The log does not have what is needed to make a file again. Nothing was touched.
    ///
    /// Row: undo-lost
    #[error(
        "files cannot go back to checkpoint {to}: the log has no content for {}\nhelp: restore a later checkpoint, or \
         restore with files as they are: --files keep",
        listed(paths)
    )]
    Lost {
        /// The checkpoint.
        to: Sequence,
        /// The files.
        paths: Vec<PathBuf>,
    },

    /// Going back was interrupted and cannot go on to this checkpoint.
    ///
    /// Row: undo-half-back
    #[error(
        "files have gone back part of the way to checkpoint {to}, {why}\nhelp: restore checkpoint {to}, which goes on \
         where it was interrupted"
    )]
    HalfBack {
        /// The checkpoint that was begun.
        to: Sequence,
        /// Why it does not go on.
        why: String,
    },

    /// The machine was started again while files went back, and the files were not synced before.
    ///
    /// Row: undo-power-cut
    #[error(
        "files were going back to checkpoint {to} when the machine stopped; these can be incomplete: {}\nhelp: compare \
         them with a backup; to go on with what reached the disk: --files force",
        listed(paths)
    )]
    PowerCut {
        /// The checkpoint.
        to: Sequence,
        /// The files that were to be changed.
        paths: Vec<PathBuf>,
    },

    /// A step of going back failed. The journal has what is left.
    ///
    /// Row: undo-step
    #[error(
        "{source} while {} goes back; {left}\nhelp: remove the cause (`df` for a full disk, `lsattr` for an immutable \
         file) and restore again, which goes on where it stopped",
        shown(path)
    )]
    Step {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: Box<UndoError>,
        /// What is left to do.
        left: String,
    },

    /// A file system that holds files of the log is not mounted.
    ///
    /// Row: undo-not-mounted
    #[error(
        "the file system of {} (device {device}) is not mounted\nhelp: mount it where it was and restore again",
        shown(path)
    )]
    NotMounted {
        /// A file on it.
        path: PathBuf,
        /// `st_dev`.
        device: u64,
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

impl UndoError {
    /// Whether files have gone back in part, or may have: they fit no checkpoint until the rest is done.
    #[must_use]
    pub fn is_half_way(&self) -> bool {
        matches!(self, Self::Step { .. } | Self::HalfBack { .. } | Self::PowerCut { .. })
    }
}

/// Most paths that a message lists.
const LISTED_MAX: usize = 20;

fn listed(paths: &[PathBuf]) -> String {
    let mut text = paths.iter().take(LISTED_MAX).map(|path| shown(path)).collect::<Vec<_>>().join(", ");
    if paths.len() > LISTED_MAX {
        text += &format!(" and {} more", paths.len() - LISTED_MAX);
    }
    text
}

/// A path as messages show it.
pub(crate) fn shown(path: &Path) -> String {
    Escaped(&path.to_string_lossy()).to_string()
}
