//! Errors of saving or restoring a kernel object.
//!
//! Owns: the error type of this crate.
//! Does not: print; the verbs do.

use model::{Escaped, Pid};

/// A failed step of saving or restoring a kernel object.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// A remote system call failed.
    #[error(transparent)]
    Remote(#[from] tracee::RemoteError),
    /// The payload of a record does not match its kind and version.
    /// Row: record-malformed
    #[error(
        "record {kind} cannot be decoded: {}\nhelp: the image was written by another version or is damaged; run `undying verify`",
        Escaped(why)
    )]
    Malformed {
        /// The record's kind.
        kind: &'static str,
        /// What the decoder found.
        why: String,
    },
    /// An unsupported object that preflight could not find.
    /// Row: not-supported
    #[error("{} of pid {pid} is not supported: {}\nhelp: {}", Escaped(what), Escaped(why), Escaped(fix))]
    Unsupported {
        /// The process.
        pid: Pid,
        /// The object.
        what: String,
        /// The reason.
        why: String,
        /// What the operator can do.
        fix: String,
    },
    /// A file that the program needs is missing, or is not the file of the checkpoint.
    /// Row: file-changed
    #[error("{}: {}\nhelp: {}", Escaped(path), Escaped(why), Escaped(fix))]
    File {
        /// Its path.
        path: String,
        /// What is wrong with it.
        why: String,
        /// What the operator can do.
        fix: String,
    },
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, ResourceError>;

/// Decodes the payload of a record.
pub fn decode<Message: prost::Message + Default>(kind: &'static str, payload: &[u8]) -> Result<Message> {
    Message::decode(payload).map_err(|error| ResourceError::Malformed { kind, why: error.to_string() })
}
