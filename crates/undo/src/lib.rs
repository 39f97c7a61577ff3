//! The undo log of files: what a subject changes on disk, and the way back to a checkpoint.
//!
//! Owns: watching the changes of a subject, keeping what was there before them, and going back.
//! Invariants: nothing is changed before its former state is in the log; going back is journalled and idempotent; what
//! the subject has made is moved aside and never destroyed; no step follows a symbolic link.
//! Does not: know processes beyond the listener of their filter, checkpoints beyond their numbers, or restart policy.
#![forbid(unsafe_code)]

pub mod back;
mod error;
mod key;
pub mod log;
pub mod watch;

pub use error::{Result, UndoError};
pub use key::{Attributes, FileKey, Time};
