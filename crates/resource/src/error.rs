//! Why a kernel object could not be saved or restored.
//!
//! Owns: the error type of this crate.
//! Does not: print; the verbs do.

use model::{Escaped, Pid};

/// A failed step of saving or restoring a kernel object.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// A remote system call failed.
    #[error(transparent)]
    Remote(#[from] tracee::RemoteError),
    /// The payload of a record is not what its kind and version promise.
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
    /// The kind meets something it does not support only when it is too late for preflight.
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
    /// A file the program needs is missing or is another one than at the checkpoint.
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

/// A result of this crate.
pub type Result<T> = std::result::Result<T, ResourceError>;

/// Decodes the payload of a record.
pub fn decode<Message: prost::Message + Default>(kind: &'static str, payload: &[u8]) -> Result<Message> {
    Message::decode(payload).map_err(|error| ResourceError::Malformed { kind, why: error.to_string() })
}
