//! Reads checkpoints of a log as images.
//!
//! Owns: listing the checkpoints of a log; building an `ImageReader` for one checkpoint.
//! Invariants: opened files stay readable, even if the writer removes them meanwhile.
//! Does not: lock the log; a writer may be running.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::{Commit, EXTENT_PAGES_MAX, Extent, LogSegment, PageChecksum, PageIndex};
use image::{SegmentId, Source, SpaceId};
use model::{Address, ByteCount, PAGE_BYTES, PageCount, Sequence};
use sys::{Errno, Target};

use super::layout::{HEAD_BYTES, LOG_DIRECTORY};
use super::load::{Loaded, LogFiles, Newest};
use super::table::PageContent;
use crate::error::{Error, Result};
use crate::layout::parent;
use crate::medium::Medium;
use crate::name::parse_sequence;
use crate::reader::ImageReader;
use crate::trust::is_absence;

/// The maximum number of retries. A reader retries if the writer has removed a file before the reader has opened it.
/// For each retry, the writer has written several new checkpoints.
const RETRIES_MAX: usize = 64;

/// Splits the path of an image into the directory of the log and a sequence number. Returns `None` if an image
/// directory with this path exists or if there is no log next to it.
pub(crate) fn locate(medium: &dyn Medium, path: &Path) -> sys::Result<Option<(PathBuf, Sequence)>> {
    let Some(sequence) = path.file_name().and_then(|name| parse_sequence(name.to_str()?)) else {
        return Ok(None);
    };
    let directory = parent(path).join(LOG_DIRECTORY);
    let is_log = medium.kind(path)?.is_none() && medium.kind(&directory)?.is_some();
    Ok(is_log.then_some((directory, sequence)))
}

/// Returns the sequence numbers of the checkpoints of the log in this directory, sorted.
pub(crate) fn sequences(medium: &dyn Medium, directory: &Path) -> Result<Vec<Sequence>> {
    let found = with_newest(medium, directory, |_, newest| Ok(newest.sequences().collect()));
    found.map(Option::unwrap_or_default)
}

/// Returns the commit records of the checkpoints of a log, by increasing sequence number.
pub(crate) fn commits(medium: &dyn Medium, directory: &Path) -> Result<Vec<(Sequence, Result<Commit>)>> {
    let found = with_newest(medium, directory, |files, newest| {
        let mut commits = Vec::new();
        for sequence in newest.sequences() {
            let commit = match files.root(newest, sequence) {
                Ok(Some(root)) => Ok(root.commit),
                Ok(None) => continue,
                Err(error) if is_absence(&error) => return Err(error),
                Err(error) => Err(error),
            };
            commits.push((sequence, commit));
        }
        Ok(commits)
    });
    found.map(Option::unwrap_or_default)
}

/// Returns the commit record of one checkpoint of a log; `None` if the log has no such checkpoint.
pub(crate) fn commit(medium: &dyn Medium, directory: &Path, sequence: Sequence) -> Result<Option<Commit>> {
    let found = with_newest(medium, directory, |files, newest| files.root(newest, sequence));
    Ok(found?.flatten().map(|root| root.commit))
}

/// Opens one checkpoint of a log. Returns `None` if the log has no such checkpoint.
pub(crate) fn open(
    medium: &dyn Medium,
    path: &Path,
    directory: &Path,
    sequence: Sequence,
) -> Result<Option<ImageReader>> {
    let opened = with_newest(medium, directory, |files, newest| {
        let Some(root) = files.root(newest, sequence)? else { return Ok(None) };
        let loaded = files.load(&root, newest.length)?;
        let (extents, used) = extents(&loaded);
        let index = PageIndex::from_extents(extents).map_err(|error| Error::decoding(directory, error))?;
        let mut segments = BTreeMap::new();
        let mut commit = root.commit;
        for (number, id) in used {
            let segment = files.take(number)?;
            commit.segments.push(segment.file(id));
            segments.insert(id, segment);
        }
        let records = loaded.records.into_values().collect();
        let reader = ImageReader::from_parts(path.to_path_buf(), commit, records, index, segments)?;
        Ok(Some(reader.with_page_table(loaded.pages)))
    });
    opened.map(Option::flatten)
}

/// Calls `each` with the newest commit. Retries if the writer has removed a needed file meanwhile. Returns `None` if
/// there is no log or no commit.
fn with_newest<T>(
    medium: &dyn Medium,
    directory: &Path,
    each: impl Fn(&mut LogFiles<'_>, &Newest) -> Result<T>,
) -> Result<Option<T>> {
    if medium.kind(directory)?.is_none() {
        return Ok(None);
    }
    let (mut tries, mut length) = (0, HEAD_BYTES);
    loop {
        let mut files = LogFiles::new(medium, directory);
        let result = match files.newest() {
            Ok(None) => return Ok(None),
            Ok(Some(newest)) => {
                length = newest.length;
                each(&mut files, &newest)
            }
            Err(error) => Err(error),
        };
        match result {
            Err(error) if is_absence(&error) && tries < RETRIES_MAX => tries += 1,
            result => return result.map(Some).map_err(|error| missing(error, length)),
        }
    }
}

/// Returns the final error after all retries. A file that is still missing was not removed by a running writer, so the
/// log is damaged.
fn missing(error: Error, expected: ByteCount) -> Error {
    match error {
        Error::Io(sys::Error { errno: Errno::ENOENT, target: Target::Path(path), .. }) => {
            Error::WrongLength { path: path.into(), found: None, expected }
        }
        error => error,
    }
}

/// Returns the pages of a checkpoint as extents, and the segments that contain these extents.
fn extents(loaded: &Loaded) -> (Vec<Extent>, BTreeMap<LogSegment, SegmentId>) {
    let mut used = BTreeMap::new();
    let mut extents: Vec<Extent> = Vec::new();
    for (space, page, content) in loaded.pages.iter() {
        let start = Address(page * PAGE_BYTES);
        let (source, checksum) = match content {
            PageContent::Zero => (Source::Zero, None),
            PageContent::At(block_index, checksum) => {
                let place = loaded.segments.place(block_index);
                let next = SegmentId(used.len() as u32);
                let segment = *used.entry(place.segment).or_insert(next);
                let joined = PageChecksum::join(image::Checksum::default(), &[checksum]);
                (Source::Stored { segment, offset: place.offset(), checksum: joined }, Some(checksum))
            }
        };
        if !extents.last_mut().is_some_and(|last| extend(last, space, start, source, checksum)) {
            extents.push(Extent { space, start, pages: PageCount(1), source });
        }
    }
    (extents, used)
}

/// Adds a page to an extent if the page follows directly in the address space and in the segment. Returns false
/// otherwise.
fn extend(
    last: &mut Extent,
    space: SpaceId,
    start: Address,
    source: Source,
    page: Option<PageChecksum>,
) -> bool {
    if (last.space, last.range().end) != (space, start) {
        return false;
    }
    match (&mut last.source, source, page) {
        (Source::Zero, Source::Zero, _) if last.pages.get() < u64::from(u32::MAX) => {}
        (
            Source::Stored { segment, offset, checksum },
            Source::Stored { segment: of, offset: at, .. },
            Some(page),
        ) if *segment == of
            && offset.get() + last.pages.bytes().get() == at.get()
            && last.pages < EXTENT_PAGES_MAX =>
        {
            *checksum = PageChecksum::join(*checksum, &[page]);
        }
        _ => return false,
    }
    last.pages += PageCount(1);
    true
}
