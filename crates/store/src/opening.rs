//! Opens an image by its path. The image is a directory, or a checkpoint of a log.
//!
//! Owns: the order of the checks.
//! Invariants: the checksums of an image are verified before its content is used.
//! Does not: check pages before a caller reads them; `load` and `verify` check pages.

use std::collections::BTreeMap;
use std::path::Path;

use image::{Checksum, ChunkTable, Commit, PageIndex, Part, RecordSet, SealedFile, SegmentFile};
use model::ByteCount;
use sys::Errno;

use crate::backend::directory::Directory;
use crate::error::{Error, Result};
use crate::layout::COMMIT_FILE;
use crate::log::read as log;
use crate::medium::{Kind, Medium};
use crate::reader::{ImageReader, Segment};

/// The maximum length of a commit record. The length is sufficient for much more than 100,000 processes.
const COMMIT_BYTES_MAX: ByteCount = ByteCount(16 << 20);

impl ImageReader {
    /// Opens the image in this directory.
    ///
    /// # Errors
    ///
    /// Returns the error of the first failed check: `NoPath`, `NotCommitted`, `Foreign`, `Newer`, `Damaged` or
    /// `WrongLength`. Also returns `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_on(&Directory::default(), path)
    }

    /// Opens the image in this directory on the given medium. Fails as `open` does.
    pub fn open_on(medium: &dyn Medium, path: &Path) -> Result<Self> {
        let path = &*medium.resolve(path)?;
        let not_committed = || Error::NotCommitted(path.to_path_buf());
        if let Some((log, sequence)) = log::locate(medium, path)? {
            return log::open(medium, path, &log, sequence)?.ok_or_else(not_committed);
        }
        match Self::open_files(medium, path) {
            Err(error @ Error::NoPath { .. }) => Err(error),
            // The image was pruned while its files were being opened. This is not damage.
            Err(error) if error.is_damage() && medium.kind(path)?.is_none() => Err(not_committed()),
            result => result,
        }
    }

    fn open_files(medium: &dyn Medium, path: &Path) -> Result<Self> {
        let commit = read_commit(medium, path)?;
        let records = read_sealed(medium, path, &commit.records, Part::Records, RecordSet::decode)?;
        let index = read_sealed(medium, path, &commit.index, Part::Index, PageIndex::decode)?;
        let mut segments = BTreeMap::new();
        for segment in &commit.segments {
            segments.insert(segment.id, open_segment(medium, path, segment)?);
        }
        Self::from_parts(path.to_path_buf(), commit, records, index, segments, None)
    }
}

/// Returns the commit record of the image in this directory.
pub(crate) fn read_commit(medium: &dyn Medium, directory: &Path) -> Result<Commit> {
    let directory = &*medium.resolve(directory)?;
    let not_committed = || Error::NotCommitted(directory.to_path_buf());
    if let Some((log, sequence)) = log::locate(medium, directory)? {
        return log::commit(medium, &log, sequence)?.ok_or_else(not_committed);
    }
    let path = directory.join(COMMIT_FILE);
    match medium.kind(directory)? {
        None => return Err(Error::NoPath(directory.to_path_buf())),
        // A directory without a commit record is not an image, and its permission bits do not matter.
        Some(Kind::Directory { .. }) if medium.kind(&path)?.is_some() => medium.check_directory(directory)?,
        Some(_) => {}
    }
    let bytes = present(medium.read_file(&path, COMMIT_BYTES_MAX), not_committed)?;
    Commit::decode(&bytes).map_err(|error| Error::decoding(&path, error))
}

fn read_sealed<T>(
    medium: &dyn Medium,
    directory: &Path,
    file: &SealedFile,
    part: Part,
    decode: impl FnOnce(&[u8]) -> image::Result<T>,
) -> Result<T> {
    let path = directory.join(&file.name);
    let wrong_length = |found| Error::WrongLength { path: path.clone(), found, expected: file.length };
    // One extra byte reveals a file that is too long.
    let limit = ByteCount(file.length.get().saturating_add(1));
    let bytes = present(medium.read_file(&path, limit), || wrong_length(None))?;
    if bytes.len() as u64 != file.length.get() {
        return Err(wrong_length(Some(ByteCount(bytes.len() as u64))));
    }
    let computed = Checksum::of(&bytes);
    if computed != file.checksum {
        let source =
            image::Error::ChecksumMismatch { part, offset: ByteCount(0), stored: file.checksum, computed };
        return Err(Error::Damaged { path, source });
    }
    decode(&bytes).map_err(|error| Error::decoding(&path, error))
}

fn open_segment(medium: &dyn Medium, directory: &Path, file: &SegmentFile) -> Result<Segment> {
    let path = directory.join(&file.name);
    let wrong_length = |found| Error::WrongLength { path: path.clone(), found, expected: file.length };
    let pages = present(medium.open_pages(&path), || wrong_length(None))?;
    let found = pages.length()?;
    if found != file.length {
        return Err(wrong_length(Some(found)));
    }
    let Some(packing) = &file.packing else { return Segment::new(path, pages) };
    let table = read_sealed(medium, directory, &packing.chunks, Part::Chunks, ChunkTable::decode)?;
    Segment::compressed(path, pages, table, packing.clone())
}

/// Replaces the error of a missing file by the error that `absent` returns.
fn present<T>(result: Result<T>, absent: impl FnOnce() -> Error) -> Result<T> {
    let is_absent = |errno| errno == Errno::ENOENT || errno == Errno::from(rustix::io::Errno::NOTDIR);
    match result {
        Err(Error::Io(error)) if is_absent(error.errno) => Err(absent()),
        result => result,
    }
}
