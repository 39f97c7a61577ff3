//! Zstandard frames.

use std::fmt;

use sys::{Errno, Error, Result};

use super::kind::{Codec, Compressor};

/// The level: above it, it takes twice the time for a few percent.
const LEVEL: i32 = 1;

#[derive(Debug)]
pub(super) struct Zstd;

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
        let failed = |error| Error::new("begin to compress", Errno::from(error));
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
