//! The files of a segment. A segment is stored as one uncompressed file, or as a compressed file and a chunk table. The
//! chunk table describes the compressed chunks of the file.
//!
//! Owns: the names and the layout of these files; creating, opening, checking, removing and listing segments.
//! Invariants: a segment is durable, including its name and header, before pages are written to it. A segment number is
//! never used twice. Positions in a segment refer to the uncompressed content, also if the segment is compressed. As
//! long as the uncompressed file exists, readers use this file.
//! Does not: decide when a segment is needed, or compress segments; the module `compression` does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::{
    Checksum, ChunkTable, Extent, LOG_BLOCK_BYTES, LogHeader, LogId, LogSegment, Packing, PageChecksum,
    SealedFile, SegmentId, Source, SpaceId,
};
use model::{Address, ByteCount, PAGE_BYTES, PageCount};
use sys::direct_io::Rings;
use sys::page_buffer::PageBuffer;

use crate::codec::{self, CODECS};
use crate::error::{Error, Result};
use crate::medium::{Medium, PageFile};
use crate::reader::{Segment, check_pages};
use crate::trust;

/// The name of the log directory in the directory of a subject.
pub(crate) const LOG_DIRECTORY: &str = "log";

/// The number of slots (blocks that publish a commit) in a segment. The slots are written in turn: the first slot
/// follows the last. An epoch writes at most two slots. Only a few slot writes are in flight at the same time, so no
/// write reaches the slot of the newest durable commit.
pub(super) const SLOTS: u32 = 15;

/// The number of blocks before the first page: the header and the slots.
pub(super) const FIRST_BLOCK: u32 = 1 + SLOTS;

/// The number of bytes before the first page.
pub(super) const HEAD_BYTES: ByteCount = ByteCount(FIRST_BLOCK as u64 * LOG_BLOCK_BYTES);

/// The minimum size of a segment. Half of a segment of this size is available for pages.
pub(super) const SEGMENT_BYTES_MIN: u64 = 2 * HEAD_BYTES.0;

/// The maximum size of a segment. A larger segment would not be faster, and would make compaction less precise.
pub(super) const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// The maximum size of a chunk table that is read. The table of the largest segment is much smaller.
const CHUNKS_BYTES_MAX: ByteCount = ByteCount(1 << 20);

/// The maximum size up to which new segments grow with the program.
pub(super) const SEGMENT_BYTES_GROWN: u64 = 64 << 20;

const SUFFIX: &str = "seg";
const CHUNKS_SUFFIX: &str = "chunks";
const NEW: &str = "new";

/// The common properties of all segments of a log.
#[derive(Clone, Debug)]
pub(super) struct SegmentLayout {
    pub(super) log: LogId,
    pub(super) rings: Rings,
}

/// Returns the path of an uncompressed segment.
pub(super) fn segment_path(directory: &Path, number: LogSegment) -> PathBuf {
    directory.join(segment_name(number))
}

/// Returns the file name of an uncompressed segment.
fn segment_name(number: LogSegment) -> String {
    format!("{:010}.{SUFFIX}", number.0)
}

/// Returns the path of a compressed segment.
pub(super) fn compressed_path(directory: &Path, number: LogSegment, codec: &str) -> PathBuf {
    directory.join(format!("{}.{codec}", segment_name(number)))
}

/// Returns the path of the chunk table of a compressed segment.
pub(super) fn chunks_path(directory: &Path, number: LogSegment) -> PathBuf {
    directory.join(format!("{:010}.{CHUNKS_SUFFIX}", number.0))
}

/// Returns the path of a chunk table that is being written. A reader must never find a part of a table under its name: the
/// uncompressed segment can be removed at any time.
pub(super) fn new_chunks_path(directory: &Path, number: LogSegment) -> PathBuf {
    directory.join(format!("{:010}.{CHUNKS_SUFFIX}.{NEW}", number.0))
}

/// The existing files of one segment. A segment is written uncompressed. Later, a compressed file and its chunk table
/// can replace the uncompressed file. The uncompressed file is removed when both new files are durable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct SegmentFiles {
    /// Whether the uncompressed file exists.
    pub(super) is_plain: bool,
    has_chunks: bool,
    /// Whether a chunk table exists that was not written completely.
    has_new_chunks: bool,
    /// The codecs of the existing compressed files: at most one codec.
    codecs: Vec<String>,
}

impl SegmentFiles {
    /// Reports whether the pages of the segment can be read.
    const fn is_whole(&self) -> bool {
        self.is_plain || self.has_chunks && !self.codecs.is_empty()
    }

    /// Returns the codec that is needed for reading the segment; `None` if the uncompressed file exists.
    pub(super) fn codec(&self) -> Option<&str> {
        if self.is_plain { None } else { self.codecs.first().map(String::as_str) }
    }

    /// Returns the paths of all files of the segment.
    pub(super) fn paths(&self, directory: &Path, number: LogSegment) -> Vec<PathBuf> {
        let plain = self.is_plain.then(|| segment_path(directory, number));
        let all = plain.into_iter().chain(self.compressed(directory, number));
        all.chain(self.unfinished(directory, number)).collect()
    }

    /// Returns the files that an unfinished compression has left: an unfinished chunk table, and the compressed files if the
    /// uncompressed file still exists.
    pub(super) fn leftovers(&self, directory: &Path, number: LogSegment) -> Vec<PathBuf> {
        let compressed = self.is_plain.then(|| self.compressed(directory, number));
        compressed.into_iter().flatten().chain(self.unfinished(directory, number)).collect()
    }

    fn unfinished(&self, directory: &Path, number: LogSegment) -> Option<PathBuf> {
        self.has_new_chunks.then(|| new_chunks_path(directory, number))
    }

    fn compressed(&self, directory: &Path, number: LogSegment) -> impl Iterator<Item = PathBuf> {
        let files = self.codecs.iter().map(move |codec| compressed_path(directory, number, codec));
        files.chain(self.has_chunks.then(|| chunks_path(directory, number)))
    }
}

/// Returns the files of all segments, by segment number. Refuses a directory that another user can write to.
pub(super) fn files(medium: &dyn Medium, directory: &Path) -> Result<BTreeMap<LogSegment, SegmentFiles>> {
    medium.check_directory(directory)?;
    let mut found: BTreeMap<LogSegment, SegmentFiles> = BTreeMap::new();
    for entry in medium.list(directory)? {
        let Some((digits, kind)) = entry.name.split_once('.') else { continue };
        let Ok(number) = digits.parse().map(LogSegment) else { continue };
        if format!("{:010}", number.0) != digits {
            continue;
        }
        let mut enter = |change: &dyn Fn(&mut SegmentFiles)| change(found.entry(number).or_default());
        match kind.split_once('.') {
            None if kind == SUFFIX => enter(&|files| files.is_plain = true),
            None if kind == CHUNKS_SUFFIX => enter(&|files| files.has_chunks = true),
            Some((CHUNKS_SUFFIX, NEW)) => enter(&|files| files.has_new_chunks = true),
            Some((SUFFIX, codec)) => enter(&|files| files.codecs.push(codec.to_owned())),
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the numbers of the readable segments, sorted.
pub(super) fn segments(medium: &dyn Medium, directory: &Path) -> Result<Vec<LogSegment>> {
    let found = files(medium, directory)?.into_iter();
    Ok(found.filter(|(_, files)| files.is_whole()).map(|(number, _)| number).collect())
}

/// Creates an empty, durable segment. `buffer` is the buffer for a header; it is created at the first call.
pub(super) fn create_segment(
    medium: &dyn Medium,
    directory: &Path,
    layout: &SegmentLayout,
    (number, length): (LogSegment, ByteCount),
    buffer: &mut Option<PageBuffer>,
) -> Result<Box<dyn PageFile>> {
    let path = segment_path(directory, number);
    let mut fill = || {
        let mut file = medium.create_log(&path, length, &layout.rings)?;
        let header = LogHeader { log: layout.log, segment: number, length };
        let block = ByteCount(LOG_BLOCK_BYTES);
        let mut bytes = buffer.take().map_or_else(|| PageBuffer::new(block), Ok)?;
        bytes.copy_from_slice(&header.encode());
        file.submit(bytes, ByteCount(0)..block, ByteCount(0))?;
        *buffer = file.wait_done()?;
        file.sync()?;
        medium.sync_directory(directory)?;
        Ok(file)
    };
    fill().map_err(|error: sys::Error| {
        if error.errno != sys::Errno::EEXIST {
            // If the removal fails, the next writer removes the file when it opens the log.
            let _ = medium.remove_file(&path);
        }
        error.into()
    })
}

/// Opens a segment. Fails with ENOENT if the writer has removed the segment after the caller listed the segments.
pub(super) fn open_segment(medium: &dyn Medium, directory: &Path, number: LogSegment) -> Result<Segment> {
    let plain = segment_path(directory, number);
    match absent(medium.open_pages(&plain))? {
        Ok(pages) => Segment::new(plain, pages),
        // The uncompressed file was removed only after the compressed file was complete.
        Err(gone) => open_compressed(medium, directory, number)?.ok_or(gone),
    }
}

/// Reads the first `HEAD_BYTES` bytes of a segment: the header and the slots. Returns fewer bytes if the segment is
/// shorter.
pub(super) fn head(medium: &dyn Medium, directory: &Path, number: LogSegment) -> Result<Vec<u8>> {
    match absent(medium.read_file(&segment_path(directory, number), HEAD_BYTES))? {
        Ok(head) => Ok(head),
        Err(gone) => {
            let segment = open_compressed(medium, directory, number)?.ok_or(gone)?;
            let mut head = vec![0; segment.length.min(HEAD_BYTES).get() as usize];
            segment.pages.read(&mut head, ByteCount(0))?;
            Ok(head)
        }
    }
}

/// Verifies the checksum of the page at `offset` in a segment.
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

/// Removes a segment. If the removal fails, the next writer removes the files when it opens the log.
pub(super) fn remove_segment(medium: &dyn Medium, directory: &Path, number: LogSegment) {
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
    let all = files(medium, directory)?;
    let Some(codec) = all.get(&number).and_then(SegmentFiles::codec) else { return Ok(None) };
    let path = compressed_path(directory, number, codec);
    Err(Error::UnknownCodec { path, codec: codec.to_owned(), known: codec::names() })
}

/// Returns the error of a missing file as the inner result, and every other error as the outer result.
fn absent<T>(result: Result<T>) -> Result<std::result::Result<T, Error>> {
    match result {
        Err(error) if !trust::is_absence(&error) => Err(error),
        result => Ok(result),
    }
}

/// Returns the error for a log whose segment numbers are exhausted.
pub(super) fn too_many(directory: &Path) -> Error {
    let what = "the number of segments";
    Error::encoding(directory, image::Error::TooLarge { part: image::Part::LogHeader, what })
}
