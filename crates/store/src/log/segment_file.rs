//! A segment's file, as it was written or compressed.
//!
//! Owns: finding out which of them there is, opening it, checking its pages, removing it.
//! Invariants: a place in a segment is the same place in either; the file as it was written counts as long as it is
//! there.
//! Does not: compress; `cold` does.

use std::path::Path;

use image::{
    Checksum, ChunkTable, Extent, LogSegment, Packing, PageChecksum, SealedFile, SegmentId, Source, SpaceId,
};
use model::{Address, ByteCount, PAGE_BYTES, PageCount};

use super::layout::{self, HEAD_BYTES, chunks_path, compressed_path, segment_path};
use crate::codec::{self, CODECS};
use crate::error::{Error, Result};
use crate::medium::Medium;
use crate::reader::{Segment, check_pages};
use crate::trust;

/// The longest table of chunks that is read: many times that of the longest segment.
const CHUNKS_BYTES_MAX: ByteCount = ByteCount(1 << 20);

/// Opens a segment. ENOENT when it is not there: its writer may have removed it since it was listed.
pub(super) fn open(medium: &dyn Medium, directory: &Path, number: LogSegment) -> Result<Segment> {
    let plain = segment_path(directory, number);
    match absent(medium.open_pages(&plain))? {
        Ok(pages) => Segment::new(plain, pages),
        // What takes its place was complete before it went.
        Err(gone) => open_compressed(medium, directory, number)?.ok_or(gone),
    }
}

/// The beginning of a segment; as much as there is of it.
pub(super) fn head(medium: &dyn Medium, directory: &Path, number: LogSegment) -> Result<Vec<u8>> {
    match absent(medium.read_file(&segment_path(directory, number), HEAD_BYTES))? {
        Ok(head) => Ok(head),
        Err(gone) => {
            let segment = open_compressed(medium, directory, number)?.ok_or(gone)?;
            let mut head = vec![0; segment.length().min(HEAD_BYTES).get() as usize];
            segment.pages.read(&mut head, ByteCount(0))?;
            Ok(head)
        }
    }
}

/// Whether a page, found at this offset of a segment's file, is the one that was written.
pub(super) fn check_page(
    path: &Path,
    (space, page): (SpaceId, u64),
    offset: ByteCount,
    checksum: PageChecksum,
    bytes: &[u8],
) -> Result<()> {
    let source = Source::Stored { segment: SegmentId(0), offset, checksum: Checksum(checksum.0) };
    let extent = Extent { space, start: Address(page * PAGE_BYTES), pages: PageCount(1), source };
    check_pages(path, &extent, bytes)
}

/// Removes a segment. What cannot be removed now is removed by the next writer's sweep.
pub(super) fn remove(medium: &dyn Medium, directory: &Path, number: LogSegment) {
    if medium.remove_file(&segment_path(directory, number)).is_err() {
        for codec in CODECS {
            let _ = medium.remove_file(&compressed_path(directory, number, codec.name()));
        }
        let _ = medium.remove_file(&chunks_path(directory, number));
    }
}

fn open_compressed(medium: &dyn Medium, directory: &Path, number: LogSegment) -> Result<Option<Segment>> {
    let chunks = chunks_path(directory, number);
    let Ok(bytes) = absent(medium.read_file(&chunks, CHUNKS_BYTES_MAX))? else { return Ok(None) };
    let table = ChunkTable::decode(&bytes).map_err(|error| Error::decoding(&chunks, error))?;
    for codec in CODECS {
        let path = compressed_path(directory, number, codec.name());
        let Ok(pages) = absent(medium.open_pages(&path))? else { continue };
        let name = chunks.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (length, checksum) = (ByteCount(bytes.len() as u64), Checksum::of(&bytes));
        let chunks = SealedFile { name, length, checksum };
        let packing = Packing { codec: codec.name().to_owned(), chunks };
        return Segment::compressed(path, pages, table, packing).map(Some);
    }
    let files = layout::files(medium, directory)?;
    let Some(codec) = files.get(&number).and_then(|files| files.codec()) else { return Ok(None) };
    let path = compressed_path(directory, number, codec);
    Err(Error::UnknownCodec { path, codec: codec.to_owned(), known: codec::names() })
}

/// Takes a file's absence out of what may go wrong.
fn absent<T>(result: Result<T>) -> Result<std::result::Result<T, Error>> {
    match result {
        Err(error) if !trust::is_absence(&error) => Err(error),
        result => Ok(result),
    }
}
