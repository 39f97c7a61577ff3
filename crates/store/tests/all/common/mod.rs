//! Helpers for several tests of the store: metadata, records, and pages with known bytes.

pub(crate) mod log_model;
pub(crate) mod remote_sink;
pub(crate) mod scratch;

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use image::{Owner, Record, RecordSet, SpaceId, Timings};
use model::{Address, PAGE_BYTES, PageCount, Pid, Sequence};
use store::{
    CommitMeta, ImageReader, ImageWriter, LogCommitted, PageSink, Result, VerifyReport, WriteOptions,
};

use undying_store as store;

pub(crate) fn options() -> WriteOptions {
    WriteOptions { buffers: 3.try_into().unwrap(), buffer_pages: PageCount(16), codec: None }
}

pub(crate) fn meta(sequence: u64) -> CommitMeta {
    CommitMeta {
        sequence: Sequence(sequence),
        time: UNIX_EPOCH + Duration::from_secs(1_700_000_000 + sequence),
        subject: "subject".into(),
        pids: vec![Pid(7), Pid(8)],
        kernel_release: "6.12.0".into(),
        tool_version: "0.1.0".into(),
        timings: Timings { pause: Duration::from_micros(300), ..Timings::default() },
    }
}

pub(crate) fn records() -> RecordSet {
    (0..3).map(|number| Record::new("kind", 1, Owner::Object(number), vec![number as u8; 50])).collect()
}

/// Appends pages from the page number `page` on. Each value fills one page.
pub(crate) fn append(writer: &ImageWriter, space: u32, page: u64, values: &[u8]) -> Result<()> {
    for (number, part) in values.chunks(options().buffer_pages.0 as usize).enumerate() {
        let first = page + number as u64 * options().buffer_pages.0;
        let mut batch = writer.pool().buffer()?;
        let start = Address(first * PAGE_BYTES);
        let bytes = batch.push(SpaceId(space), start, PageCount(part.len() as u64)).unwrap();
        for (page, value) in bytes.chunks_mut(PAGE_BYTES as usize).zip(part) {
            page.fill(*value);
        }
        writer.append(batch)?;
    }
    Ok(())
}

/// Writes an image of 40 pages to a path. Every fifth page is zero.
pub(crate) fn write_image(path: &Path, sequence: u64) -> Result<LogCommitted> {
    let writer = ImageWriter::create(path, options())?;
    let values: Vec<u8> = (0..40).map(|page| if page % 5 == 0 { 0 } else { page as u8 }).collect();
    append(&writer, 0, 100, &values)?;
    writer.finish(&records(), meta(sequence))
}

/// Verifies the image in this directory.
pub(crate) fn verify(path: &Path) -> Result<VerifyReport> {
    ImageReader::open(path)?.verify(|_| ())
}
