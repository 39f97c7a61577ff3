//! LZ4 blocks.

use sys::Result;

use super::kind::{Codec, Compressor};

#[derive(Debug)]
pub(super) struct Lz4;

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
