//! Images that outlive their source: named copies, and exports.
//!
//! Owns: sharing the files of a copy with its source; writing a new image from another image.
//! Invariants: a copy becomes visible when it is complete and durable. The copy remains unchanged when the source is
//! changed or removed.
//! Does not: choose what to copy.

use std::path::Path;
use std::sync::Arc;

use image::{Commit, Extent, Packing, SealedFile, SegmentFile, Source};
use model::{ByteCount, PageCount};
use rustix::io::Errno as Refused;
use sys::Errno;

use crate::error::{Error, Result, is_one_of};
use crate::layout::{INDEX_FILE, RECORDS_FILE, WriteOptions, parent};
use crate::load::THREADS;
use crate::log::LogCommitted;
use crate::medium::Medium;
use crate::meta::CommitMeta;
use crate::reader::ImageReader;
use crate::sink::PageSink as _;
use crate::staging::{self, Staging};
use crate::writer::{Files, ImageWriter};

/// The maximum number of retries. A copy is retried if the writer of a log removes a file before the file is shared.
const RETRIES_MAX: usize = 64;

/// Errors of link(2) that mean: this file system or file does not allow another hard link.
const CANNOT_SHARE: [Refused; 4] = [Refused::XDEV, Refused::PERM, Refused::OPNOTSUPP, Refused::MLINK];

/// Creates an image at `target`, on the same medium as `source`. The image shares its segments with the image at
/// `source`. Where hard links are impossible, the pages are copied.
pub(crate) fn copy(medium: &Arc<dyn Medium>, source: &Path, target: &Path) -> Result<()> {
    let mut tries = 0;
    loop {
        match share(medium, source, target) {
            Err(Error::Io(error)) if error.errno == Errno::ENOENT && tries < RETRIES_MAX => tries += 1,
            Err(Error::Io(error)) if is_one_of(error.errno, &CANNOT_SHARE) => {
                let codec = ImageReader::open_on(&**medium, source)?.codec();
                let options = WriteOptions { codec, ..WriteOptions::default() };
                return export(medium, source, target, options).map(drop);
            }
            result => return result,
        }
    }
}

/// Writes the pages and records of the image at `source` to a new image at `target`.
pub(crate) fn export(
    medium: &Arc<dyn Medium>,
    source: &Path,
    target: &Path,
    options: WriteOptions,
) -> Result<LogCommitted> {
    let image = ImageReader::open_on(&**medium, source)?;
    let writer = ImageWriter::create_on(Arc::clone(medium), target, options)?;
    let zero = image.index().extents().iter().filter(|extent| extent.source == Source::Zero);
    for extent in zero {
        append(&writer, extent, None)?;
    }
    image.load::<Error>(image.index().extents(), THREADS, |run| {
        run.iter().try_for_each(|(extent, bytes)| append(&writer, extent, Some(bytes)))
    })?;
    writer.finish(image.records(), CommitMeta::of(image.commit().clone()))
}

fn share(medium: &Arc<dyn Medium>, source: &Path, target: &Path) -> Result<()> {
    let image = ImageReader::open_on(&**medium, source)?;
    staging::sweep(&**medium, parent(target))?;
    let staging = Staging::create(Arc::clone(medium), target)?;
    let files = Files { medium: &**medium, directory: &staging.path };
    let mut segments = Vec::new();
    let mut bytes = 0;
    for (path, segment) in image.segment_files() {
        let name = format!("pages-{}.seg", segment.id);
        medium.link(path, &files.path(&name))?;
        // The sync is needed because a checkpoint of a log can become readable before it is durable.
        medium.sync_file(&files.path(&name))?;
        let packing = match segment.packing {
            Some(Packing { codec, chunks }) => {
                let name = format!("chunks-{}", segment.id);
                medium.link(&parent(path).join(&chunks.name), &files.path(&name))?;
                Some(Packing { codec, chunks: SealedFile { name, ..chunks } })
            }
            None => None,
        };
        let segment = SegmentFile { name, packing, ..segment };
        bytes += segment.bytes().get();
        segments.push(segment);
    }
    let (records_file, records) = files.seal(RECORDS_FILE, image.records().encode())?;
    let (index_file, index) = files.seal(INDEX_FILE, image.index().encode())?;
    let bytes = records.length + index.length + ByteCount(bytes);
    let commit = Commit { records, index, segments, bytes, ..image.commit().clone() };
    files.commit(&commit, None, [records_file, index_file])?;
    staging.publish()
}

/// Appends an extent to an image, in one or more batches. Without `bytes`, the pages are zero.
fn append(writer: &ImageWriter, extent: &Extent, bytes: Option<&[u8]>) -> Result<()> {
    let mut done = PageCount(0);
    while done < extent.pages {
        let mut batch = writer.pool().buffer()?;
        done += batch.copy(extent, done, bytes);
        writer.append(batch)?;
    }
    Ok(())
}
