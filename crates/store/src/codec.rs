//! Codecs for compressed segments. A new codec is a type in this file and an entry of `CODECS`.
//!
//! Owns: the interface of a codec; finding a codec by its name. An image contains the name of its codec.
//! Invariants: for any input, a codec fills the destination or reports a failure. A codec never panics and never writes
//! elsewhere.
//! Does not: divide segments into chunks.

use std::fmt::{self, Debug};

use sys::Result;

/// All codecs.
pub const CODECS: &[&dyn Codec] = &[&Lz4, &Zstd];

/// Returns the codec with this name.
#[must_use]
pub fn codec(name: &str) -> Option<&'static dyn Codec> {
    CODECS.iter().copied().find(|codec| codec.name() == name)
}

/// Returns the names of all codecs, for messages.
pub(crate) fn names() -> String {
    CODECS.iter().map(|codec| codec.name()).collect::<Vec<_>>().join(", ")
}

/// A compression format for chunks of pages.
pub trait Codec: Sync + Debug {
    /// Returns the name of the codec, as used on the command line and in images.
    fn name(&self) -> &'static str;

    /// Returns a short description for help and documentation.
    fn summary(&self) -> &'static str;

    /// Returns a compressor for chunks of at most `chunk` bytes. Each thread needs its own compressor.
    fn compressor(&self, chunk: usize) -> Result<Box<dyn Compressor>>;

    /// Expands a chunk into exactly `bytes`. Returns false if this codec did not write the chunk.
    fn expand(&self, stored: &[u8], bytes: &mut [u8]) -> bool;
}

/// Compresses chunks in sequence.
pub trait Compressor: Send + Debug {
    /// Returns the compressed chunk. Returns `None` if the result is not smaller than the input.
    fn compress(&mut self, bytes: &[u8]) -> Option<&[u8]>;
}

/// The LZ4 block format.
#[derive(Debug)]
struct Lz4;

#[derive(Debug)]
struct Blocks {
    out: Vec<u8>,
}

impl Codec for Lz4 {
    fn name(&self) -> &'static str {
        "lz4"
    }

    fn summary(&self) -> &'static str {
        "quick"
    }

    fn compressor(&self, chunk: usize) -> Result<Box<dyn Compressor>> {
        Ok(Box::new(Blocks { out: vec![0; lz4_flex::block::get_maximum_output_size(chunk)] }))
    }

    fn expand(&self, stored: &[u8], bytes: &mut [u8]) -> bool {
        lz4_flex::block::decompress_into(stored, bytes).is_ok_and(|length| length == bytes.len())
    }
}

impl Compressor for Blocks {
    fn compress(&mut self, bytes: &[u8]) -> Option<&[u8]> {
        let length = lz4_flex::block::compress_into(bytes, &mut self.out).ok()?;
        self.out.get(..length).filter(|stored| stored.len() < bytes.len())
    }
}

/// The compression level. Higher levels take twice the time and reduce the size by only a few percent.
const LEVEL: i32 = 1;

/// The Zstandard frame format.
#[derive(Debug)]
struct Zstd;

struct Frames {
    context: zstd::bulk::Compressor<'static>,
    out: Vec<u8>,
}

impl Codec for Zstd {
    fn name(&self) -> &'static str {
        "zstd"
    }

    fn summary(&self) -> &'static str {
        "small"
    }

    fn compressor(&self, chunk: usize) -> Result<Box<dyn Compressor>> {
        let failed = |error| sys::Error::new("begin to compress", sys::Errno::from(error));
        let context = zstd::bulk::Compressor::new(LEVEL).map_err(failed)?;
        Ok(Box::new(Frames { context, out: vec![0; chunk] }))
    }

    fn expand(&self, stored: &[u8], bytes: &mut [u8]) -> bool {
        zstd::bulk::decompress_to_buffer(stored, bytes).is_ok_and(|length| length == bytes.len())
    }
}

impl Compressor for Frames {
    fn compress(&mut self, bytes: &[u8]) -> Option<&[u8]> {
        // The destination is one byte smaller than the chunk, so that chunks that do not become smaller are refused.
        let room = bytes.len().min(self.out.len()).saturating_sub(1);
        let length = self.context.compress_to_buffer(bytes, &mut self.out[..room]).ok()?;
        self.out.get(..length)
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Frames")
    }
}
