//! Images that outlive their log or their number: named copies, and exports.
//!
//! Owns: sharing the files of a copy with its source; writing a new image from another.
//! Invariants: a copy becomes visible when it is complete and durable. It does not change when its source changes or is
//! removed.
//! Does not: choose what to copy.

use std::path::Path;
use std::sync::Arc;

use image::{Commit, Extent, Packing, SealedFile, SegmentFile, Source};
use model::{ByteCount, PageCount};
use rustix::io::Errno as Refused;
use sys::Errno;

use crate::error::{Error, Result, is_one_of};
use crate::layout::{COMMIT_FILE, INDEX_FILE, RECORDS_FILE, WriteOptions, parent};
use crate::load::THREADS;
use crate::log::LogCommitted;
use crate::medium::Medium;
use crate::meta::CommitMeta;
use crate::reader::ImageReader;
use crate::sink::PageSink as _;
use crate::staging::{self, Staging};
use crate::writer::{Files, ImageWriter};

/// Times that a copy begins anew because the writer of a log removed what was about to be shared.
const RETRIES_MAX: usize = 64;

/// What says that files cannot have two names.
const CANNOT_SHARE: [Refused; 4] = [Refused::XDEV, Refused::PERM, Refused::OPNOTSUPP, Refused::MLINK];

/// Makes an image at `target` that shares its pages with the image at `source`, on the same medium. Where files
/// cannot have two names, it gets pages of its own.
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

/// Writes an image at `target` with the pages and records of the one at `source`, and nothing else.
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
        // A checkpoint of a log can be read a moment before it is durable.
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
    let (mut records_file, records) = files.seal(RECORDS_FILE, image.records().encode())?;
    let (mut index_file, index) = files.seal(INDEX_FILE, image.index().encode())?;
    let bytes = records.length + index.length + ByteCount(bytes);
    let commit = Commit { records, index, segments, bytes, ..image.commit().clone() };
    let (mut commit_file, _) = files.seal(COMMIT_FILE, commit.encode())?;
    records_file.sync()?;
    index_file.sync()?;
    commit_file.sync()?;
    staging.publish()
}

/// Appends an extent to an image, in as many batches as it takes; without bytes, zeros.
fn append(writer: &ImageWriter, extent: &Extent, bytes: Option<&[u8]>) -> Result<()> {
    let mut done = PageCount(0);
    while done < extent.pages {
        let mut batch = writer.buffer()?;
        done += batch.copy(extent, done, bytes);
        writer.append(batch)?;
    }
    Ok(())
}
