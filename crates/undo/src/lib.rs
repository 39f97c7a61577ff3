//! The undo log of files: records changes that a subject makes on disk, and rolls files back to a checkpoint.
//!
//! A checkpoint is *exact* if files can be rolled back to the checkpoint. An *epoch* is the time between two successive
//! exact checkpoints; a *boundary* ends one epoch and begins the next. The log has one file for each epoch. Before the
//! first change of a file in an epoch, the log records the state of the file. A rollback uses these records to return
//! files to their state at a checkpoint. An epoch is *broken* if its records are incomplete; no rollback across a
//! broken epoch is possible. A *keep directory* contains hard links and copies of earlier files, which records name.
//!
//! Owns: the watch that detects changes of a subject, the log of earlier file states, and the rollback.
//! Invariants: the log records the former state of a file before the file changes. A rollback is journalled and
//! idempotent. A rollback moves files that the subject has created to a special directory, and never deletes these
//! files. No step of a rollback follows a symbolic link.
//! Does not: know processes, except for the listener of their seccomp filter. This crate knows only the sequence
//! numbers of checkpoints, and decides no restart policy.
#![forbid(unsafe_code)]

pub mod back;
mod descriptor;
mod error;
mod key;
pub mod log;
mod rights;
#[cfg(any(test, feature = "simulated"))]
#[path = "../tests/simulated/mod.rs"]
pub mod simulated;
pub mod watch;

pub use error::{Result, UndoError};
pub use key::{Attributes, FileKey, Time};
