//! An open image (one complete checkpoint).
//!
//! Owns: the records, the page index and the open segments of an image; choosing and expanding the chunks that a read
//! of a compressed segment needs.
//! Invariants: the checksums of the commit record, the records and the index of an open image are correct. Every extent
//! lies inside a segment of the right length. The image remains readable when it is pruned. Offsets refer to the
//! expanded segment. A codec receives only bytes that it has written. A damaged chunk is read as zeros; the checksums
//! of its pages then report the damage.
//! Does not: check pages before they are read, because `load` and `verify` check pages; or cache expanded chunks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use image::{
    Checksum, ChunkTable, Commit, Extent, Packing, PageIndex, Part, RecordSet, SegmentFile, SegmentId, Source,
};
use model::{ByteCount, PAGE_BYTES};
use sys::Errno;

use crate::codec::{self, Codec};
use crate::error::{Error, Result};
use crate::layout::parent;
use crate::log::table::PageTable;
use crate::medium::PageSource;

/// A committed image. Several threads may read the image at the same time.
#[derive(Debug)]
pub struct ImageReader {
    path: PathBuf,
    commit: Commit,
    records: RecordSet,
    index: PageIndex,
    segments: BTreeMap<SegmentId, Segment>,
    /// The checksum of each page. `None` if only the extents have checksums.
    page_table: Option<PageTable>,
}

/// An open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) pages: Box<dyn PageSource>,
    /// The length of the uncompressed segment.
    pub(crate) length: ByteCount,
    /// The length of the file.
    pub(crate) file_length: ByteCount,
    packing: Option<Packing>,
}

impl Segment {
    /// Returns an uncompressed segment. The length of the segment is the length of the file.
    pub(crate) fn new(path: PathBuf, pages: Box<dyn PageSource>) -> Result<Self> {
        let length = pages.length()?;
        Ok(Self { path, pages, length, file_length: length, packing: None })
    }

    /// Returns a compressed segment with the table of its chunks.
    pub(crate) fn compressed(
        path: PathBuf,
        pages: Box<dyn PageSource>,
        table: ChunkTable,
        packing: Packing,
    ) -> Result<Self> {
        let (name, known) = (&packing.codec, codec::names());
        let codec = codec::codec(name).ok_or_else(|| Error::UnknownCodec {
            path: path.clone(),
            codec: name.clone(),
            known,
        })?;
        let file_length = pages.length()?;
        if table.stored() != file_length {
            let what = "chunks that do not fill the segment";
            let source = image::Error::Malformed { part: Part::Chunks, offset: ByteCount(0), what };
            return Err(Error::Damaged { path: parent(&path).join(&packing.chunks.name), source });
        }
        let length = table.whole();
        let pages = Box::new(CompressedSource { file: pages, table, codec });
        Ok(Self { path, pages, length, file_length, packing: Some(packing) })
    }

    /// Returns the entry for this segment in a commit record.
    pub(crate) fn file(&self, id: SegmentId) -> SegmentFile {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        SegmentFile { id, name, length: self.file_length, packing: self.packing.clone() }
    }
}

impl ImageReader {
    /// Creates a reader from parts that the caller has read and opened. Verifies that every extent lies inside a
    /// segment.
    pub(crate) fn from_parts(
        path: PathBuf,
        commit: Commit,
        records: RecordSet,
        index: PageIndex,
        segments: BTreeMap<SegmentId, Segment>,
        page_table: Option<PageTable>,
    ) -> Result<Self> {
        check_places(&index, &segments)
            .map_err(|source| Error::Damaged { path: path.join(&commit.index.name), source })?;
        Ok(Self { path, commit, records, index, segments, page_table })
    }

    /// Returns the table with the checksum of each page, if the image has it.
    pub(crate) const fn page_table(&self) -> Option<&PageTable> {
        self.page_table.as_ref()
    }

    /// Returns the directory of the image. For a checkpoint of a log, this directory does not exist.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the commit record.
    #[must_use]
    pub const fn commit(&self) -> &Commit {
        &self.commit
    }

    /// Returns the records.
    #[must_use]
    pub const fn records(&self) -> &RecordSet {
        &self.records
    }

    /// Moves the records out of the reader.
    #[must_use]
    pub fn take_records(&mut self) -> RecordSet {
        std::mem::take(&mut self.records)
    }

    /// Returns the page index, which contains the location of every page.
    #[must_use]
    pub const fn index(&self) -> &PageIndex {
        &self.index
    }

    /// Reads the pages of one extent of this image's index, and verifies the checksum. `buffer` must have the size of
    /// the extent. Zero pages become zero bytes. Use `load` to read many extents.
    ///
    /// # Errors
    ///
    /// Returns `PagesDamaged`, or an error of reading the pages. After an error, the content of the buffer is
    /// undefined.
    pub fn read_extent(&self, extent: &Extent, buffer: &mut [u8]) -> Result<()> {
        if buffer.len() as u64 != extent.pages.bytes().get() {
            return Err(sys::Error::path("read an extent of", &self.path, Errno::EINVAL).into());
        }
        let Source::Stored { segment, offset, .. } = extent.source else {
            buffer.fill(0);
            return Ok(());
        };
        let segment = self.segment(segment)?;
        segment.pages.read(buffer, offset)?;
        check_pages(&segment.path, extent, buffer)
    }

    /// Returns the path of each segment, and its entry for a commit record.
    pub(crate) fn segment_files(&self) -> impl Iterator<Item = (&Path, SegmentFile)> {
        self.segments.iter().map(|(id, segment)| (&*segment.path, segment.file(*id)))
    }

    /// Returns the codec of the compressed pages, if any segment is compressed.
    pub(crate) fn codec(&self) -> Option<&'static dyn Codec> {
        let packing = self.segments.values().find_map(|segment| segment.packing.as_ref())?;
        codec::codec(&packing.codec)
    }

    pub(crate) fn segment(&self, id: SegmentId) -> Result<&Segment> {
        let missing = || sys::Error::path(format!("find segment {id} in"), &self.path, Errno::EINVAL);
        self.segments.get(&id).ok_or_else(|| missing().into())
    }
}

/// Verifies the checksum of an extent. `bytes` are the content of the extent, and `path` is the segment file.
pub(crate) fn check_pages(path: &Path, extent: &Extent, bytes: &[u8]) -> Result<()> {
    let Source::Stored { offset, checksum: stored, .. } = extent.source else { return Ok(()) };
    let computed = Checksum::of(bytes);
    if stored == computed {
        return Ok(());
    }
    Err(Error::PagesDamaged { path: path.to_path_buf(), offset, extent: *extent, stored, computed })
}

/// Verifies that every stored extent lies inside a segment.
fn check_places(index: &PageIndex, segments: &BTreeMap<SegmentId, Segment>) -> image::Result<()> {
    let mut last = None;
    for (place, extent) in index.extents().iter().enumerate() {
        let Some((id, bytes)) = extent.stored() else { continue };
        // Adjacent extents are usually in the same segment.
        let length = match last {
            Some((known, length)) if known == id => length,
            _ => segments.get(&id).map_or(0, |segment| segment.length.get()),
        };
        last = Some((id, length));
        if bytes.end > length {
            let (offset, what) = (PageIndex::file_offset(place), "an extent outside the segments");
            return Err(image::Error::Malformed { part: Part::Index, offset, what });
        }
        debug_assert!(bytes.start.is_multiple_of(PAGE_BYTES), "decoding checks the alignment");
    }
    Ok(())
}

/// An open compressed segment.
#[derive(Debug)]
struct CompressedSource {
    file: Box<dyn PageSource>,
    table: ChunkTable,
    codec: &'static dyn Codec,
}

impl CompressedSource {
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
    fn length(&self) -> sys::Result<ByteCount> {
        Ok(self.table.whole())
    }

    fn read(&self, buffer: &mut [u8], offset: ByteCount) -> sys::Result<()> {
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

/// Converts a range to offsets relative to `start`.
const fn within(range: &Range<u64>, start: u64) -> Range<usize> {
    (range.start - start) as usize..(range.end - start) as usize
}
