//! An open image.
//!
//! Owns: its records, its index, its open segments; which chunks of a compressed one a read takes, expanding them.
//! Invariants: an open image has a good commit record, record file and index; every extent lies inside a
//! segment of the right length. The image stays readable when it is pruned meanwhile. Places are those of the expanded
//! segment; a codec sees only what it wrote. A chunk that is damaged reads as zeros: what is wrong with its pages is
//! reported by their check, as for any other damage.
//! Does not: check pages before they are read; `load` and `verify` do. It keeps nothing that it has expanded.

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
use crate::medium::PageSource;

/// A committed image, open for reading by any number of threads.
#[derive(Debug)]
pub struct ImageReader {
    path: PathBuf,
    commit: Commit,
    records: RecordSet,
    index: PageIndex,
    segments: BTreeMap<SegmentId, Segment>,
}

/// An open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) pages: Box<dyn PageSource>,
    /// The length of its pages when they are not compressed.
    pub(crate) length: ByteCount,
    /// The length of its file.
    pub(crate) file_length: ByteCount,
    packing: Option<Packing>,
}

impl Segment {
    /// A segment whose length is what it is.
    pub(crate) fn new(path: PathBuf, pages: Box<dyn PageSource>) -> Result<Self> {
        let length = pages.length()?;
        Ok(Self { path, pages, length, file_length: length, packing: None })
    }

    /// A segment whose pages are compressed, with the table of its chunks.
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

    /// What a commit record says of it.
    pub(crate) fn file(&self, id: SegmentId) -> SegmentFile {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        SegmentFile { id, name, length: self.file_length, packing: self.packing.clone() }
    }
}

impl ImageReader {
    /// An image of what was read and opened elsewhere.
    pub(crate) fn from_parts(
        path: PathBuf,
        commit: Commit,
        records: RecordSet,
        index: PageIndex,
        segments: BTreeMap<SegmentId, Segment>,
    ) -> Result<Self> {
        check_places(&index, &segments)
            .map_err(|source| Error::Damaged { path: path.join(&commit.index.name), source })?;
        Ok(Self { path, commit, records, index, segments })
    }

    /// The image's directory; for a checkpoint of a log, where it would be.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The commit record.
    #[must_use]
    pub const fn commit(&self) -> &Commit {
        &self.commit
    }

    /// The records.
    #[must_use]
    pub const fn records(&self) -> &RecordSet {
        &self.records
    }

    /// The records, to be consumed; the reader keeps none.
    #[must_use]
    pub fn take_records(&mut self) -> RecordSet {
        std::mem::take(&mut self.records)
    }

    /// Where every page is.
    #[must_use]
    pub const fn index(&self) -> &PageIndex {
        &self.index
    }

    /// Reads the pages of one extent of this image's index into a buffer of exactly their size, and checks
    /// them. Zero pages become zero bytes. Meant for single extents; `load` is the way to read many.
    ///
    /// # Errors
    ///
    /// `PagesDamaged`, or why they cannot be read. The buffer's content is then not to be used.
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

    /// The segments that pages are in: file, and what a commit record says of it.
    pub(crate) fn segment_files(&self) -> impl Iterator<Item = (&Path, SegmentFile)> {
        self.segments.iter().map(|(id, segment)| (&*segment.path, segment.file(*id)))
    }

    /// The codec that its pages are compressed with, if they are.
    pub(crate) fn codec(&self) -> Option<&'static dyn Codec> {
        let packing = self.segments.values().find_map(|segment| segment.packing.as_ref())?;
        codec::codec(&packing.codec)
    }

    pub(crate) fn segment(&self, id: SegmentId) -> Result<&Segment> {
        let missing = || sys::Error::path(format!("find segment {id} in"), &self.path, Errno::EINVAL);
        self.segments.get(&id).ok_or_else(|| missing().into())
    }
}

/// Whether an extent's bytes, those of this file, are those that were written.
pub(crate) fn check_pages(path: &Path, extent: &Extent, bytes: &[u8]) -> Result<()> {
    let Source::Stored { offset, checksum: stored, .. } = extent.source else { return Ok(()) };
    let computed = Checksum::of(bytes);
    if stored == computed {
        return Ok(());
    }
    Err(Error::PagesDamaged { path: path.to_path_buf(), offset, extent: *extent, stored, computed })
}

/// Whether every stored extent lies inside a segment.
fn check_places(index: &PageIndex, segments: &BTreeMap<SegmentId, Segment>) -> image::Result<()> {
    let mut last = None;
    for (place, extent) in index.extents().iter().enumerate() {
        let Some((id, bytes)) = extent.stored() else { continue };
        // Neighbours mostly lie in one segment.
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

/// A range as places behind a start.
const fn within(range: &Range<u64>, start: u64) -> Range<usize> {
    (range.start - start) as usize..(range.end - start) as usize
}
