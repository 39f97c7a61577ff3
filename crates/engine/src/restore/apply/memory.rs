//! Sets the memory of a stopped tree back to a checkpoint.
//!
//! Owns: the choice of pages that are returned to the kernel, and of pages that are written because they differ.
//! Invariants: the checksum of each page is verified before the page is written. An unchanged page is not written.
//! Does not: create or remove mappings.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use image::{Extent, PageIndex, Source, SpaceId};
use model::{Address, AddressRange, ByteCount, PAGE_BYTES};
use rustix::fs::FallocateFlags;
use store::ImageReader;
use sys::Error;
use tracee::StoppedTree;
use tracee::arch::numbers::MADVISE;
use tracee::remote::RemoteSession;

use super::compare::Comparison;
use crate::capture::{Present, without};
use crate::error::Result;
use crate::records::object_space;
use crate::restore::content::{THREADS, Target, differing};
use crate::restore::plan::Plan;

/// MADV_DONTNEED_LOCKED: discards pages, including pages of locked memory.
const MADV_DONTNEED_LOCKED: u64 = 24;
/// The number of zero bytes that are compared at once.
const ZEROS: ByteCount = ByteCount(1 << 20);
const PAGE: usize = PAGE_BYTES as usize;

/// Discards the pages that the checkpoint does not contain, by madvise(2) in each process. Returns the number of
/// pages.
pub(super) fn give_back(
    index: &PageIndex,
    wanted: &Plan,
    present: &Present,
    tree: &mut StoppedTree,
) -> Result<u64> {
    let mut pages = 0;
    for stopped in &mut tree.processes {
        let (Some(thread), Some(space)) = (stopped.threads.first_mut(), present.spaces.get(&stopped.pid))
        else {
            continue;
        };
        let Some(process) = wanted.living().find(|process| process.pid == stopped.pid) else { continue };
        let kept = index.of_space(SpaceId(process.message.space));
        let own = present.pages.iter().filter(|(id, _)| *id == space.id).map(|(_, range)| *range);
        let surplus: Vec<AddressRange> =
            own.flat_map(|range| without(range, kept.iter().map(Extent::range))).collect();
        if surplus.is_empty() {
            continue;
        }
        let mut session = RemoteSession::begin(thread, &space.context())?;
        for range in surplus {
            session.call(MADVISE, [range.start.get(), range.len().get(), MADV_DONTNEED_LOCKED, 0, 0, 0])?;
            pages += range.pages().get();
        }
        session.end()?;
    }
    Ok(pages)
}

/// Writes the differing pages of all processes. Returns the number of written pages.
pub(super) fn write_processes(reader: &ImageReader, wanted: &Plan, present: &Present) -> Result<u64> {
    let written = AtomicU64::new(0);
    for process in wanted.living() {
        let Some(memory) = present.spaces.get(&process.pid).map(|space| &space.memory) else { continue };
        let target = Target { process, memory, present: None, areas: None };
        let extents = reader.index().of_space(SpaceId(process.message.space));
        each_part(reader, extents, |at, bytes| {
            // A page that cannot be read is written. A failed write returns the error.
            let is = memory.read_vec(at, ByteCount(bytes.len() as u64)).unwrap_or_default();
            differing(&is, bytes).try_for_each(|part| {
                let start = at + ByteCount(part.start as u64);
                let range = AddressRange::new(start, start + ByteCount(part.len() as u64));
                written.fetch_add(range.pages().get(), Ordering::Relaxed);
                target.write(range, &bytes[part])
            })
        })?;
    }
    Ok(written.into_inner())
}

/// A shared memory object that is open for reading and writing.
pub(super) struct OpenObject {
    file: File,
    /// The number of the object in the checkpoint, and its present number.
    numbers: (u64, u64),
    length: u64,
}

/// Opens the shared objects whose pages the checkpoint contains.
pub(super) fn open_objects(
    wanted: &Plan,
    comparison: &Comparison,
    present: &Present,
) -> Result<Vec<OpenObject>> {
    let mut found = Vec::new();
    for object in &wanted.objects {
        let number = comparison.objects.get(&object.id);
        let Some((number, file)) = number.and_then(|number| Some((*number, present.objects.get(number)?)))
        else {
            continue;
        };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|error| Error::path("open for writing", &path, error))?;
        found.push(OpenObject { file, numbers: (object.id, number), length: object.length });
    }
    Ok(found)
}

/// Writes the differing pages of shared objects, and removes pages that the checkpoint does not contain. Returns
/// the number of written and removed pages.
pub(super) fn write_objects(reader: &ImageReader, objects: &[OpenObject], present: &Present) -> Result<u64> {
    let written = AtomicU64::new(0);
    for OpenObject { file, numbers, length } in objects {
        let extents = reader.index().of_space(object_space(numbers.0));
        let here = object_space(numbers.1);
        let pages = present.pages.iter().filter(|(space, _)| *space == here).map(|(_, range)| *range);
        for range in pages.flat_map(|range| without(range, extents.iter().map(Extent::range))) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, flags, range.start.get(), range.len().get())
                .map_err(|errno| Error::new("remove pages of a memory object", errno))?;
            written.fetch_add(range.pages().get(), Ordering::Relaxed);
        }
        each_part(reader, extents, |at, bytes| {
            // The last page of a file can extend beyond the end of the file.
            let bytes = &bytes[..length.saturating_sub(at.get()).min(bytes.len() as u64) as usize];
            let mut is = vec![0; bytes.len()];
            file.read_exact_at(&mut is, at.get())
                .map_err(|error| Error::new("read a memory object", error))?;
            differing(&is, bytes).try_for_each(|part| {
                written.fetch_add(part.len().div_ceil(PAGE) as u64, Ordering::Relaxed);
                file.write_all_at(&bytes[part.clone()], at.get() + part.start as u64)
                    .map_err(|error| Error::new("fill a memory object", error).into())
            })
        })?;
    }
    Ok(written.into_inner())
}

/// Calls `sink` with the address and the bytes of each part of the extents. Zero pages are included.
fn each_part(
    reader: &ImageReader,
    extents: &[Extent],
    sink: impl Fn(Address, &[u8]) -> Result<()> + Sync,
) -> Result<()> {
    reader
        .load(extents, THREADS, |run| run.iter().try_for_each(|(extent, bytes)| sink(extent.start, bytes)))?;
    let zeros = vec![0; ZEROS.get() as usize];
    for extent in extents.iter().filter(|extent| extent.source == Source::Zero) {
        for piece in extent.range().pieces(ZEROS) {
            sink(piece.start, &zeros[..piece.len().get() as usize])?;
        }
    }
    Ok(())
}
