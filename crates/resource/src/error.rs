//! Errors of saving or restoring a kernel object.
//!
//! Owns: the error type of this crate.
//! Does not: print errors; the commands of the crate `cli` do.

use model::{Escaped, Pid};

use crate::obstacle::Obstacle;

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
        /// The kind of the record.
        kind: &'static str,
        /// The reason that the decoder reported.
        why: String,
    },
    /// An unsupported object that preflight could not find.
    /// Row: not-supported
    #[error("{} of pid {pid} is not supported: {}\nhelp: {}", Escaped(what), Escaped(why), Escaped(fix))]
    Unsupported {
        /// The process that uses the object.
        pid: Pid,
        /// The name of the object.
        what: String,
        /// The reason why the object is not supported.
        why: String,
        /// The action that removes the obstacle.
        fix: String,
    },
    /// A file that the program needs is missing, or is not the file of the checkpoint.
    /// Row: file-changed
    #[error("{}: {}\nhelp: {}", Escaped(path), Escaped(why), Escaped(fix))]
    File {
        /// The path of the file.
        path: String,
        /// The reason why the file cannot be used.
        why: String,
        /// The action that lets the restore succeed.
        fix: String,
    },
}

impl ResourceError {
    /// Creates the error of a payload that does not match its kind and version.
    pub(crate) fn malformed(kind: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed { kind, why: why.into() }
    }
}

/// An obstacle that preflight could not find.
impl From<Obstacle> for ResourceError {
    fn from(Obstacle { pid, what, why, fix, .. }: Obstacle) -> Self {
        Self::Unsupported { pid, what, why, fix }
    }
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, ResourceError>;

/// Decodes the payload of a record.
pub fn decode<Message: prost::Message + Default>(kind: &'static str, payload: &[u8]) -> Result<Message> {
    Message::decode(payload).map_err(|error| ResourceError::Malformed { kind, why: error.to_string() })
}
