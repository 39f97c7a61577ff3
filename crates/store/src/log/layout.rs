//! Names, sizes and the first blocks of a segment's file.
//!
//! Owns: what a segment's file is called, how it is divided, how a new one is made and old ones are found.
//! Invariants: a segment is durable, name and header included, before anything is written into it; a number
//! is never used twice.
//! Does not: decide when one is needed.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use image::{LOG_BLOCK_BYTES, LogHeader, LogId, LogSegment};
use model::ByteCount;
use sys::page_buffer::PageBuffer;

use crate::error::Result;
use crate::medium::{LogFile, Medium};

/// The directory of a subject that holds its log.
pub(crate) const LOG_DIRECTORY: &str = "log";

/// Slots of a segment. An epoch takes two at most, and a slot is not written again before so many others:
/// far more than can be under way at once, so that the newest durable commit is never overwritten.
pub(super) const SLOTS: u32 = 15;

/// Blocks before the first page: the header and the slots.
pub(super) const FIRST_BLOCK: u32 = 1 + SLOTS;

/// Bytes before the first page.
pub(super) const HEAD_BYTES: ByteCount = ByteCount(FIRST_BLOCK as u64 * LOG_BLOCK_BYTES);

/// The least size of a segment: as much for pages as for its head.
pub(super) const SEGMENT_BYTES_MIN: u64 = 2 * HEAD_BYTES.0;

/// The greatest size of a segment: above it nothing gets faster, and cleaning gets coarser.
pub(super) const SEGMENT_BYTES_MAX: u64 = 1 << 30;

const SUFFIX: &str = ".seg";

/// What every segment of a log has in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) log: LogId,
    pub(super) length: ByteCount,
    pub(super) in_flight: NonZeroUsize,
}

/// A segment's file.
pub(super) fn segment_path(directory: &Path, number: LogSegment) -> PathBuf {
    directory.join(segment_name(number))
}

/// The name of a segment's file.
pub(super) fn segment_name(number: LogSegment) -> String {
    format!("{:010}{SUFFIX}", number.0)
}

/// The segments whose files are there, rising.
pub(super) fn segments(medium: &dyn Medium, directory: &Path) -> sys::Result<Vec<LogSegment>> {
    let number = |name: &str| {
        let digits = name.strip_suffix(SUFFIX)?;
        let number = LogSegment(digits.parse().ok()?);
        (segment_name(number) == name).then_some(number)
    };
    let entries = medium.list(directory)?;
    let mut numbers: Vec<LogSegment> = entries.iter().filter_map(|entry| number(&entry.name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Makes a segment, durable and empty.
pub(super) fn create_segment(
    medium: &dyn Medium,
    directory: &Path,
    shape: Shape,
    number: LogSegment,
) -> Result<Box<dyn LogFile>> {
    let path = segment_path(directory, number);
    let created = fill_segment(medium, directory, &path, shape, number);
    created.inspect_err(|error| {
        let taken = matches!(error, crate::Error::Io(error) if error.errno == sys::Errno::EEXIST);
        if !taken {
            // Where removal fails now, the next writer's sweep does it.
            let _ = medium.remove_file(&path);
        }
    })
}

fn fill_segment(
    medium: &dyn Medium,
    directory: &Path,
    path: &Path,
    shape: Shape,
    number: LogSegment,
) -> Result<Box<dyn LogFile>> {
    let mut file = medium.create_log(path, shape.length, shape.in_flight)?;
    let header = LogHeader { log: shape.log, segment: number, length: shape.length };
    let block = ByteCount(LOG_BLOCK_BYTES);
    let mut buffer = PageBuffer::new(block)?;
    buffer.copy_from_slice(&header.encode());
    file.submit(buffer, ByteCount(0)..block, ByteCount(0))?;
    while file.wait_done()?.is_some() {}
    file.sync()?;
    medium.sync_directory(directory)?;
    Ok(file)
}
