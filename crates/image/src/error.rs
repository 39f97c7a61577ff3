//! Why bytes are not an image, or not one this program can read.
//!
//! Owns: `Error` and the names of an image's parts.
//! Invariants: every error names the part and, where there is one, the offset in that part's file.
//! Does not: name a path or advise the operator; the store adds both.

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
    /// Where the chunks of a compressed segment are.
    Chunks,
    /// The first block of a segment of a log.
    LogHeader,
    /// A block of a log that names a checkpoint.
    LogSlot,
    /// What a checkpoint of a log consists of.
    LogRoot,
    /// Changes of pages and records in a log.
    LogPart,
}

/// Bytes that cannot be read as the part of an image they were taken for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The first bytes are not those of this part: something else entirely.
    #[error("{part}: not an undying image: the first bytes are {found:02x?}")]
    Foreign {
        /// What it was taken for.
        part: Part,
        /// The bytes where the magic should be.
        found: [u8; 8],
    },
    /// Whole, but written by a later release.
    #[error("{part}: written in format {found}, this program reads up to {supported}")]
    NewerVersion {
        /// The part.
        part: Part,
        /// The version in the header.
        found: u32,
        /// The latest version this program reads.
        supported: u32,
    },
    /// The bytes end too early.
    #[error("{part}: truncated: {available} bytes where {needed} are needed")]
    Truncated {
        /// The part.
        part: Part,
        /// Bytes the part should have, as far as known.
        needed: ByteCount,
        /// Bytes it has.
        available: ByteCount,
    },
    /// The bytes are not those that were written.
    #[error("{part}: damaged at byte {offset}: checksum {computed}, but {stored} was written")]
    ChecksumMismatch {
        /// The part.
        part: Part,
        /// Where the bytes under this checksum begin.
        offset: ByteCount,
        /// The checksum that was written.
        stored: Checksum,
        /// The checksum of the bytes that are there.
        computed: Checksum,
    },
    /// The checksum holds, but the content breaks a rule of the format.
    #[error("{part}: malformed at byte {offset}: {what}")]
    Malformed {
        /// The part.
        part: Part,
        /// Where.
        offset: ByteCount,
        /// Which rule.
        what: &'static str,
    },
    /// Larger than the format can express.
    #[error("{part}: {what} does not fit the format")]
    TooLarge {
        /// The part.
        part: Part,
        /// What is too large.
        what: &'static str,
    },
}

/// A result of decoding or encoding a part of an image.
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
