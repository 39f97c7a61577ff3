//! Codecs for compressed segments: a new one is a type here and an entry of `CODECS`.
//!
//! Owns: the interface of a codec, finding a codec by its name, which images record.
//! Invariants: for any input, a codec fills the destination or reports that it did not. It neither panics nor writes
//! elsewhere.
//! Does not: divide segments into chunks.

use std::fmt::{self, Debug};

use sys::Result;

/// Every codec.
pub const CODECS: &[&dyn Codec] = &[&Lz4, &Zstd];

/// The codec of this name.
#[must_use]
pub fn codec(name: &str) -> Option<&'static dyn Codec> {
    CODECS.iter().copied().find(|codec| codec.name() == name)
}

/// The names of all codecs, for messages.
pub(crate) fn names() -> String {
    CODECS.iter().map(|codec| codec.name()).collect::<Vec<_>>().join(", ")
}

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

/// LZ4 blocks.
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

/// The level: above it, it takes twice the time for a few percent.
const LEVEL: i32 = 1;

/// Zstandard frames.
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
        // A destination one byte shorter than the chunk refuses what does not get smaller.
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
