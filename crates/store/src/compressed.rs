//! Reading a compressed segment as if it were not.
//!
//! Owns: which chunks a read takes, expanding them.
//! Invariants: places are those of the expanded segment; a codec sees only what it wrote. A chunk that is damaged reads
//! as zeros: what is wrong with its pages is told by whoever checks them, as for any other damage.
//! Does not: keep what it has expanded.

use std::ops::Range;

use image::{Checksum, ChunkTable};
use model::ByteCount;
use sys::{Errno, Result};

use crate::codec::Codec;
use crate::medium::PageSource;

/// An open compressed segment.
#[derive(Debug)]
pub(crate) struct CompressedSource {
    file: Box<dyn PageSource>,
    table: ChunkTable,
    codec: &'static dyn Codec,
}

impl CompressedSource {
    pub(crate) const fn new(file: Box<dyn PageSource>, table: ChunkTable, codec: &'static dyn Codec) -> Self {
        Self { file, table, codec }
    }

    fn expand(&self, stored: &[u8], checksum: Checksum, bytes: &mut [u8]) {
        let good = Checksum::of(stored) == checksum;
        if good && stored.len() == bytes.len() {
            bytes.copy_from_slice(stored);
        } else if !good || !self.codec.expand(stored, bytes) {
            bytes.fill(0);
        }
    }
}

impl PageSource for CompressedSource {
    fn length(&self) -> Result<ByteCount> {
        Ok(self.table.whole())
    }

    fn read(&self, buffer: &mut [u8], offset: ByteCount) -> Result<()> {
        let short = || sys::Error::new("read a compressed segment", Errno::SHORT);
        let end = offset.get().checked_add(buffer.len() as u64).ok_or_else(short)?;
        let wanted = offset.get()..end;
        if wanted.is_empty() {
            return Ok(());
        }
        if end > self.table.whole().get() {
            return Err(short());
        }
        let chunks = self.table.chunks(&wanted);
        let (first, last) = (self.table.place(chunks.start), self.table.place(chunks.end - 1));
        let place = first.ok_or_else(short)?.0.start..last.ok_or_else(short)?.0.end;
        let mut stored = vec![0; (place.end - place.start) as usize];
        self.file.read(&mut stored, ByteCount(place.start))?;
        for number in chunks {
            let (chunk, checksum) = self.table.place(number).ok_or_else(short)?;
            let chunk = &stored[within(&chunk, place.start)];
            let expanded = self.table.expanded(number);
            let part = expanded.start.max(wanted.start)..expanded.end.min(wanted.end);
            let target = &mut buffer[within(&part, wanted.start)];
            if part == expanded {
                self.expand(chunk, checksum, target);
            } else {
                let mut scratch = vec![0; (expanded.end - expanded.start) as usize];
                self.expand(chunk, checksum, &mut scratch);
                target.copy_from_slice(&scratch[within(&part, expanded.start)]);
            }
        }
        Ok(())
    }
}

/// A range as places behind a start.
const fn within(range: &Range<u64>, start: u64) -> Range<usize> {
    (range.start - start) as usize..(range.end - start) as usize
}
