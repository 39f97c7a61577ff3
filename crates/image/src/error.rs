//! Errors for bytes that are not a valid image, or that have an unsupported format version.
//!
//! Owns: `Error`, and the names of the parts of an image.
//! Invariants: every error names the part. An error about a position also contains the offset in the part's file.
//! Does not: name a path or give advice to the operator; the store adds both.

use std::fmt;

use model::ByteCount;

use crate::checksum::Checksum;

/// The part of an image that an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The commit record.
    Commit,
    /// The record file.
    Records,
    /// The page index.
    Index,
    /// The table with the positions of the chunks of a compressed segment.
    Chunks,
    /// The first block of a segment of a log (the file of a subject's continuous checkpoints).
    LogHeader,
    /// A block of a log that names the commit of a checkpoint.
    LogSlot,
    /// The root of a checkpoint in a log: the list of all parts of the checkpoint.
    LogRoot,
    /// A delta of pages and records in a log.
    LogPart,
}

/// An error of decoding or encoding a part of an image.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "fields without a line of their own are what the message names")]
pub enum Error {
    /// The first bytes are not the magic of this part: the bytes are something else.
    #[error("{part}: not an undying image: the first bytes are {found:02x?}")]
    Foreign { part: Part, found: [u8; 8] },
    /// The part was written in a later format version.
    #[error("{part}: written in format {found}, this program reads up to {supported}")]
    NewerVersion { part: Part, found: u32, supported: u32 },
    /// The bytes end before the end of the part.
    #[error("{part}: truncated: {available} bytes where {needed} are needed")]
    Truncated {
        part: Part,
        /// The required number of bytes, as far as known.
        needed: ByteCount,
        available: ByteCount,
    },
    /// The checksum of the bytes differs from the stored checksum.
    #[error("{part}: damaged at byte {offset}: checksum {computed}, but {stored} was written")]
    ChecksumMismatch {
        part: Part,
        /// The offset of the first byte that the checksum covers.
        offset: ByteCount,
        stored: Checksum,
        computed: Checksum,
    },
    /// The checksum is correct, but the content breaks a rule of the format.
    #[error("{part}: malformed at byte {offset}: {what}")]
    Malformed { part: Part, offset: ByteCount, what: &'static str },
    /// A value is too large for the format.
    #[error("{part}: {what} does not fit the format")]
    TooLarge { part: Part, what: &'static str },
}

/// The result of decoding or encoding a part of an image.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Commit => "commit record",
            Self::Records => "record file",
            Self::Index => "page index",
            Self::Chunks => "table of chunks",
            Self::LogHeader => "segment header",
            Self::LogSlot => "commit slot",
            Self::LogRoot => "root of a checkpoint",
            Self::LogPart => "delta",
        })
    }
}
