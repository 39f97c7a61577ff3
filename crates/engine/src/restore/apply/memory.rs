//! Sets the memory of a stopped tree back to a checkpoint.
//!
//! Owns: the choice of pages that are returned to the kernel, and of pages that are written because they differ.
//! Invariants: the checksum of each page is verified before the page is written. An unchanged page is not written.
//! Does not: create or remove mappings.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use image::{Extent, PageIndex, Source, SpaceId};
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid, RangeSet};
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
use crate::restore::plan::{Plan, PlannedProcess};

/// MADV_DONTNEED_LOCKED: discards pages, including pages of locked memory.
const MADV_DONTNEED_LOCKED: u64 = 24;
/// The number of zero bytes that are compared at once.
const ZEROS: ByteCount = ByteCount(1 << 20);
const PAGE: usize = PAGE_BYTES as usize;

/// Discards the pages that the checkpoint does not contain, by madvise(2) in each process. The pages are found without
/// the trackers, because a tracker does not report each page that has become absent. Returns the number of
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

/// The pages of the checkpoint that must be compared with the memory, by process.
pub(super) struct Due(HashMap<Pid, RangeSet>);

impl Due {
    /// Finds the pages that were written since the checkpoint, and the pages that are not there. `written` returns the
    /// pages that a process has written since the checkpoint. If it returns `None`, all pages must be compared.
    pub(super) fn of(
        index: &PageIndex,
        wanted: &Plan,
        present: &Present,
        written: impl Fn(Pid) -> Option<RangeSet>,
    ) -> Self {
        let of_process = |process: &PlannedProcess| {
            let extents = index.of_space(SpaceId(process.message.space)).iter().map(Extent::range);
            let Some(written) = written(process.pid) else { return extents.collect() };
            let space = present.spaces.get(&process.pid).map(|space| space.id);
            let own = present.pages.iter().filter(|(id, _)| Some(*id) == space).map(|(_, range)| *range);
            let own: RangeSet = own.collect();
            extents
                .flat_map(|range| own.gaps(range).chain(written.within(range)).collect::<Vec<_>>())
                .collect()
        };
        Self(wanted.living().map(|process| (process.pid, of_process(process))).collect())
    }

    pub(super) fn pages(&self) -> u64 {
        self.0.values().map(|ranges| ranges.pages().get()).sum()
    }
}

/// Writes the differing pages of all processes. Returns the number of written pages.
pub(super) fn write_processes(
    reader: &ImageReader,
    wanted: &Plan,
    present: &Present,
    due: &Due,
) -> Result<u64> {
    let written = AtomicU64::new(0);
    for process in wanted.living() {
        let Some(memory) = present.spaces.get(&process.pid).map(|space| &space.memory) else { continue };
        let target = Target { process, memory, present: None, areas: None };
        let Some(due) = due.0.get(&process.pid) else { continue };
        let extents = reader.index().of_space(SpaceId(process.message.space)).iter();
        let extents: Vec<Extent> =
            extents.filter(|extent| due.within(extent.range()).next().is_some()).copied().collect();
        each_part(reader, &extents, |at, bytes| {
            due.within(AddressRange::new(at, at + ByteCount(bytes.len() as u64))).try_for_each(|piece| {
                let bytes = &bytes[(piece.start - at).get() as usize..(piece.end - at).get() as usize];
                // A page that cannot be read is written. A failed write returns the error.
                let is = memory.read_vec(piece.start, piece.len()).unwrap_or_default();
                differing(&is, bytes).try_for_each(|part| {
                    let start = piece.start + ByteCount(part.start as u64);
                    let range = AddressRange::new(start, start + ByteCount(part.len() as u64));
                    written.fetch_add(range.pages().get(), Ordering::Relaxed);
                    target.write(range, &bytes[part])
                })
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
