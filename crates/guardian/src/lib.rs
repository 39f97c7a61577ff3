//! Owning a subject: everything that a verb of the command line does, as a library.
//!
//! Owns: the event loop of `run`, what happens after a death, the plain values that verbs print.
//! Invariants: this program may be killed at any instant, and the subject goes on; the subject is traced by the
//! calling thread only, so nothing here starts threads that touch it.
//! Does not: parse a command line or print; `cli` does. It knows no kind, tracker or backend.
#![forbid(unsafe_code)]

mod error;
mod exit;
mod location;
mod once;
mod restoring;
mod signals;
mod streams;
mod subject;

pub use error::{GuardianError, Result};
pub use exit::ExitCode;
pub use location::StoreLocation;
pub use once::{Checkpointed, CheckpointRequest, checkpoint};
pub use restoring::{Numbers, RestoreRequest, Resumed, restore};
pub use subject::SubjectStatus;
