//! What a codec does.
//!
//! Owns: the traits `Codec` and `Compressor`.
//! Does not: know any.

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
