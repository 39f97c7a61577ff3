//! Reads checkpoints of a log as images.
//!
//! Owns: listing the checkpoints of a log; building an `ImageReader` for one checkpoint.
//! Invariants: opened files stay readable, even if the writer removes them meanwhile.
//! Does not: lock the log; a writer may be running.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::{Commit, LogSegment, SegmentId};
use model::{ByteCount, Sequence};
use sys::{Errno, Target};

use super::layout::{HEAD_BYTES, LOG_DIRECTORY};
use super::load::{LogFiles, Newest};
use crate::error::{Error, Result};
use crate::extents;
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
        let mut used: BTreeMap<LogSegment, SegmentId> = BTreeMap::new();
        let index = extents::index(&loaded.pages, |block_index| {
            let (place, next) = (loaded.segments.place(block_index), SegmentId(used.len() as u32));
            (*used.entry(place.segment).or_insert(next), place.offset())
        });
        let index = index.map_err(|error| Error::decoding(directory, error))?;
        let mut segments = BTreeMap::new();
        let mut commit = root.commit;
        for (number, id) in used {
            let segment = files.take(number)?;
            commit.segments.push(segment.file(id));
            segments.insert(id, segment);
        }
        let records = loaded.records.into_values().collect();
        let (path, pages) = (path.to_path_buf(), Some(loaded.pages));
        ImageReader::from_parts(path, commit, records, index, segments, pages).map(Some)
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
