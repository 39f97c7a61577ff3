//! The registry of codecs for compressed segments: a new one is a file here and a line in `CODECS`.
//!
//! Owns: finding a codec by its name, which images carry.
//! Invariants: whatever bytes a codec is given to expand, it fills the destination or says that it did not; it neither
//! panics nor writes anywhere else.
//! Does not: cut segments into chunks.

mod kind;
mod lz4;
mod zstd;

pub use self::kind::{Codec, Compressor};

/// Every codec.
pub const CODECS: &[&dyn Codec] = &[&lz4::Lz4, &zstd::Zstd];

/// The codec of this name.
#[must_use]
pub fn codec(name: &str) -> Option<&'static dyn Codec> {
    CODECS.iter().copied().find(|codec| codec.name() == name)
}

/// The names of all codecs, for messages.
pub(crate) fn names() -> String {
    CODECS.iter().map(|codec| codec.name()).collect::<Vec<_>>().join(", ")
}
