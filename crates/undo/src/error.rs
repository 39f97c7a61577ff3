//! Errors of this crate.
//!
//! Owns: the error type of the watch, the undo log and the rollback.
//! Invariants: an error that names a path shows the path without control characters.
//! Does not: decide how a caller reacts to an error.

use std::path::{Path, PathBuf};

use model::{ByteCount, Escaped, Sequence};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, UndoError>;

/// An error of the watch, the undo log or a rollback.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "fields without a line of their own are what the message names")]
pub enum UndoError {
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),

    /// The directory of the log cannot be used.
    #[error(transparent)]
    Store(store::Error),

    /// The newest epoch alone is larger than the size limit of the log.
    #[error("the undo log needs {needed} bytes for one epoch, but its limit is {max} bytes")]
    Full {
        /// The number of bytes that the log would have.
        needed: ByteCount,
        max: ByteCount,
    },

    /// The disk was full, and has less than 16 MiB of free space now. No epoch begins.
    #[error("the file system of {} is full", shown(directory))]
    Short { directory: PathBuf },

    /// The log contains a torn record: a write failed, and the partial record could not be removed. The present epoch
    /// accepts no more records.
    #[error("the undo log in {} has a torn record", shown(directory))]
    Torn { directory: PathBuf },

    /// A file system does not provide file handles (name_to_handle_at(2)).
    #[error(
        "the file system at {} provides no file handles (overlayfs provides file handles with the mount options \
         index=on,nfs_export=on)",
        shown(mount)
    )]
    NoHandles { mount: PathBuf },

    /// The directory contains no epoch of a log.
    #[error("there is no undo log in {}", shown(directory))]
    NoLog { directory: PathBuf },

    /// Another program has changed files after the subject had ended. The rollback has not changed these files.
    ///
    /// Row: undo-conflict
    #[error(
        "files have changed since the program ended: {}\nhelp: save your changes and restore again; or roll back these \
         files as well: --files force",
        listed(paths)
    )]
    Conflict { paths: Vec<PathBuf> },

    /// A moved file cannot be put back, because a file already exists at its path.
    ///
    /// Row: put-back-taken
    #[error(
        "{} exists; nothing was changed\nhelp: rename the existing file, then put the moved file back; or use the moved \
         file at its present path: {}",
        shown(path),
        shown(from)
    )]
    Taken {
        path: PathBuf,
        /// The present path of the moved file.
        from: PathBuf,
    },

    /// A moved file is not put back, because its directory or its type does not permit it.
    ///
    /// Row: put-back-refused
    #[error(
        "{} was not put back: {why}; nothing was changed\nhelp: inspect the directory (`ls -ld`), then move the file \
         yourself if you trust both: mv -n {} DIRECTORY",
        shown(path),
        shown(from)
    )]
    NotPutBack {
        path: PathBuf,
        /// The present path of the moved file.
        from: PathBuf,
        why: String,
    },

    /// The subject has changed files, and could not change these files now. Example: the administrator has removed the
    /// write permission since. The rollback has changed nothing.
    ///
    /// Row: undo-denied
    #[error(
        "the program has changed files that it may not change any more: {}\nhelp: give the program its permissions back and \
         restore again; or roll back these files with your permissions: --files force",
        listed(paths)
    )]
    Denied { paths: Vec<PathBuf> },

    /// The administrator has made files immutable or append-only (chattr(1)), so that no program can set them back. The
    /// rollback has changed nothing.
    ///
    /// Row: undo-fixed
    #[error(
        "cannot roll back files that are immutable or append-only: {}\nhelp: remove the attribute (chattr -i, chattr -a) and \
         roll back: --files force; or restore with files as they are: --files keep",
        listed(paths)
    )]
    Fixed { paths: Vec<PathBuf> },

    /// Another program holds leases (fcntl(2), F_SETLEASE) on files and does not give them up. The rollback has changed
    /// nothing.
    ///
    /// Row: undo-leased
    #[error(
        "cannot roll back files on which another program holds a lease: {}\nhelp: end that program (see `lslocks`) and \
         restore again; or wait for the end of the leases and roll back: --files force",
        listed(paths)
    )]
    Leased { paths: Vec<PathBuf> },

    /// A file must be created again, but the log does not contain the content of the file. The rollback has changed
    /// nothing.
    ///
    /// Row: undo-lost
    #[error(
        "cannot roll files back to checkpoint {to}: the undo log contains no content for {}\nhelp: restore a later checkpoint, or \
         restore with files as they are: --files keep",
        listed(paths)
    )]
    Lost {
        to: Sequence,
        /// The files without content in the log.
        paths: Vec<PathBuf>,
    },

    /// Another program has removed files of the checkpoint, or has put other files at their paths. The rollback has
    /// changed nothing.
    ///
    /// Row: undo-replaced
    #[error(
        "cannot roll files back to checkpoint {to}: another program has removed or replaced {}\nhelp: restore a \
         later checkpoint, or restore with files as they are: --files keep",
        listed(paths)
    )]
    Replaced { to: Sequence, paths: Vec<PathBuf> },

    /// An earlier rollback was interrupted. The requested operation is impossible until the earlier rollback is
    /// complete.
    ///
    /// Row: undo-half-back
    #[error(
        "the rollback of files to checkpoint {to} was interrupted, {why}\nhelp: restore checkpoint {to}, which \
         continues the rollback"
    )]
    HalfBack { to: Sequence, why: String },

    /// The machine stopped during a rollback that did not sync files. The files that the rollback has changed may be
    /// incomplete.
    ///
    /// Row: undo-power-cut
    #[error(
        "the machine stopped during the rollback of files to checkpoint {to}; these files may be incomplete: {}\nhelp: \
         compare these files with a backup; or continue with the data on the disk: --files force",
        listed(paths)
    )]
    PowerCut {
        to: Sequence,
        /// The files that the rollback was about to change.
        paths: Vec<PathBuf>,
    },

    /// A step of a rollback failed. The next call continues the rollback with the help of the journal.
    ///
    /// Row: undo-step
    #[error(
        "{source} during the rollback of {}; {left}\nhelp: remove the cause (`df` for a full disk) and restore \
         again, which continues the rollback",
        shown(path)
    )]
    Step {
        path: PathBuf,
        source: Box<UndoError>,
        /// A text with the number of changes that remain.
        left: String,
    },

    /// A file system with files that the log names is not mounted.
    ///
    /// Row: undo-not-mounted
    #[error(
        "the file system of {} (device {device}) is not mounted\nhelp: mount the file system at its earlier mount point and restore again",
        shown(path)
    )]
    NotMounted {
        path: PathBuf,
        /// The device of the file system (`st_dev`).
        device: u64,
    },

    /// A keep directory has an unexpected owner or mode, or belongs to another log.
    ///
    /// Row: undo-keep-foreign
    #[error(
        "{} is not a keep directory of this undo log\nhelp: find out which program created the directory, then \
         remove it; undying creates keep directories with mode 0700",
        shown(path)
    )]
    ForeignKeep { path: PathBuf },

    /// A rollback cannot reach the requested checkpoint.
    ///
    /// Row: undo-unreachable
    #[error(
        "cannot roll files back to checkpoint {to}: {why}\nhelp: `undying ls NAME` lists the checkpoints; restore a \
         later one, or restore with files as they are: --files keep"
    )]
    Unreachable { to: Sequence, why: String },
}

impl UndoError {
    /// Reports whether a rollback may be incomplete. An incomplete rollback leaves files that match no checkpoint.
    #[must_use]
    pub fn is_half_way(&self) -> bool {
        matches!(self, Self::Step { .. } | Self::HalfBack { .. } | Self::PowerCut { .. })
    }

    /// Reports whether this program lacked descriptors or memory, so that another attempt may succeed.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        match self {
            Self::Kernel(error) | Self::Store(store::Error::Io(error)) => error.errno.is_shortage(),
            _ => false,
        }
    }
}

/// The maximum number of paths that a message lists.
const LISTED_MAX: usize = 20;

fn listed(paths: &[PathBuf]) -> String {
    let mut text = paths.iter().take(LISTED_MAX).map(|path| shown(path)).collect::<Vec<_>>().join(", ");
    if paths.len() > LISTED_MAX {
        text += &format!(" and {} more", paths.len() - LISTED_MAX);
    }
    text
}

/// Returns a path with control characters escaped, for messages.
pub(crate) fn shown(path: &Path) -> String {
    Escaped(&path.to_string_lossy()).to_string()
}
