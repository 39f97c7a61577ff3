//! The registry of codecs for compressed segments: a new one is a file here and a line in `CODECS`.
//!
//! Owns: finding a codec by its name, which images carry.
//! Invariants: whatever bytes a codec is given to expand, it fills the destination or says that it did not; it neither
//! panics nor writes anywhere else.
//! Does not: cut segments into chunks.

mod lz4;
mod zstd;

use std::fmt::Debug;

use sys::Result;

/// A way to store a chunk of pages in fewer bytes.
pub trait Codec: Sync + Debug {
    /// Its name, on the command line and in images.
    fn name(&self) -> &'static str;

    /// What it is good for, for help and documentation.
    fn summary(&self) -> &'static str;

    /// What compresses chunks of at most this many bytes, for one thread.
    fn compressor(&self, chunk: usize) -> Result<Box<dyn Compressor>>;

    /// Expands a chunk into exactly these bytes; false when it is not one that this codec wrote.
    fn expand(&self, stored: &[u8], bytes: &mut [u8]) -> bool;
}

/// Compresses one chunk after the other.
pub trait Compressor: Send + Debug {
    /// The chunk in fewer bytes than it has; `None` when that cannot be.
    fn compress(&mut self, bytes: &[u8]) -> Option<&[u8]>;
}

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
