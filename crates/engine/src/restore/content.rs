//! Fills memory: first the shared objects, then the pages of each process, with several threads.
//!
//! Owns: the transfer of each page from the image into its object or process.
//! Invariants: the checksum of each page is verified before the page is written.
//! Does not: create mappings.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsFd;

use image::{Extent, Source, SpaceId};
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid, RangeSet};
use resource::memory::{self, AreaRecord};
use store::{ImageReader, LoadedRun};
use sys::process_memory::{self, RANGES_PER_CALL};
use sys::{Error, shared_memory};
use tracee::ProcessMemory;

use super::built::Built;
use super::files::OpenFiles;
use super::fresh::FreshMemory;
use super::inherited::Inherited;
use super::plan::{Plan, PlannedProcess};
use crate::error::{EngineError, Result};
use crate::records::object_space;

/// The number of threads that fill memory.
pub(super) const THREADS: NonZeroUsize = NonZeroUsize::new(2).expect("two is not zero");
const PROT_WRITE: u32 = 2;
const PAGE: usize = PAGE_BYTES as usize;
/// The instruction `int3` of x86.
const BREAKPOINT: u8 = 0xcc;
/// The maximum number of zero bytes in one write. An extent can have any length.
const CLEARED_BYTES: ByteCount = ByteCount(1 << 20);

pub(super) fn fill_objects(reader: &ImageReader, plan: &Plan, open: &mut OpenFiles) -> Result<()> {
    for object in &plan.objects {
        let extents = reader.index().of_space(object_space(object.id));
        let file = open.object(object.id)?;
        let kind = memory::kind_named(&object.kind);
        kind.map_or(Ok(()), |kind| kind.clear(object, file))?;
        reader.load(extents, NonZeroUsize::MIN, |run| {
            for (extent, bytes) in run.iter() {
                // The last page of a file can extend beyond the end of the file.
                let end = object.length.min(extent.start.get() + bytes.len() as u64);
                let length = end.saturating_sub(extent.start.get()) as usize;
                write_all(file.as_fd(), &bytes[..length], extent.start)?;
            }
            Ok::<(), EngineError>(())
        })?;
        kind.map_or(Ok(()), |kind| kind.filled(object, file))?;
    }
    open.close_writers_of_executables(plan);
    Ok(())
}

fn write_all(file: std::os::fd::BorrowedFd<'_>, bytes: &[u8], at: Address) -> Result<()> {
    let failed = |errno| Error::new("fill a memory object", errno);
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(file, &bytes[done..], at.get() + done as u64) {
            Ok(written) => done += written,
            // A file of hugetlbfs has no write(2).
            Err(rustix::io::Errno::INVAL) => {
                let page = rustix::fs::fstatfs(file).map_err(failed)?.f_bsize as u64;
                shared_memory::write_mapped(file, ByteCount(page), ByteCount(at.get()), bytes)?;
                return Ok(());
            }
            Err(errno) => return Err(failed(errno).into()),
        }
    }
    Ok(())
}

/// A process whose memory is filled: its records, and access to its memory.
pub(super) struct Target<'a> {
    pub(super) process: &'a PlannedProcess,
    pub(super) memory: &'a ProcessMemory,
    /// Pages that already exist in a new process. They are written only if they have another content.
    pub(super) present: Option<&'a RangeSet>,
    /// The areas (mappings) that exist. `None` means that all areas exist.
    pub(super) areas: Option<AreaFilter<'a>>,
}

/// Reports whether an area exists.
pub(super) type AreaFilter<'a> = &'a (dyn Fn(&AreaRecord) -> bool + Sync);

/// Writes the pages of all processes, with several threads. Skips each extent that `inherited` has filled, and each
/// extent for which `comes_later` returns true; a lazy restore fills this extent after the start.
pub(super) fn fill_processes(
    reader: &ImageReader,
    plan: &Plan,
    built: &Built,
    (inherited, fresh): (&Inherited, &FreshMemory),
    comes_later: impl Fn(&Extent) -> bool,
) -> Result<()> {
    let mut targets: Vec<(SpaceId, Target<'_>)> = Vec::new();
    let mut extents: Vec<Extent> = Vec::new();
    for process in plan.living() {
        let (pid, space) = (process.pid, SpaceId(process.message.space));
        let memory = &built.processes[&pid].memory;
        targets.push((space, Target { process, memory, present: inherited.present(pid), areas: None }));
        let is_due = |extent: &&Extent| !comes_later(extent) && !inherited.is_complete(pid, extent);
        extents.extend(reader.index().of_space(space).iter().filter(is_due));
    }
    fill_extents(reader, &targets, fresh, &extents)?;
    for extent in extents.iter().filter(|extent| extent.source == Source::Zero) {
        target_of(&targets, extent.space)?.clear(extent.range())?;
    }
    check_spaces(reader, plan)
}

/// Writes the stored pages of extents, with several threads.
pub(super) fn fill_extents(
    reader: &ImageReader,
    targets: &[(SpaceId, Target<'_>)],
    fresh: &FreshMemory,
    extents: &[Extent],
) -> Result<()> {
    reader.load(extents, THREADS, |run| fill(targets, fresh, run))
}

/// Writes a run of extents. Extents from a log are not in address order, so one call writes many separate ranges.
fn fill(targets: &[(SpaceId, Target<'_>)], fresh: &FreshMemory, run: &LoadedRun<'_>) -> Result<()> {
    let (mut pieces, mut pid) = (Vec::new(), None);
    for (extent, bytes) in run.iter() {
        let target = target_of(targets, extent.space)?;
        if pid != Some(target.process.pid) || pieces.len() >= RANGES_PER_CALL {
            flush(pid.replace(target.process.pid), &mut pieces)?;
        }
        target.each_part(extent.range(), bytes, |at, bytes, area| {
            target.each_new_part(at, bytes, |at, bytes, is_missing| {
                if is_missing && fresh.fill(target.process.pid, at, bytes)? {
                    return Ok(());
                }
                if area.protection & PROT_WRITE != 0 {
                    pieces.push((at, bytes));
                    return Ok(());
                }
                target.write_protected(at, bytes, area)
            })
        })?;
    }
    flush(pid, &mut pieces)
}

fn flush(pid: Option<Pid>, pieces: &mut Vec<(Address, &[u8])>) -> Result<()> {
    if let Some(pid) = pid {
        process_memory::write_scattered(pid, pieces)?;
    }
    pieces.clear();
    Ok(())
}

/// Reports whether each difference between two pages is a breakpoint in one of them.
fn differs_in_breakpoints_only(one: &[u8], other: &[u8]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other || *one == BREAKPOINT || *other == BREAKPOINT)
}

/// Returns the runs of pages that differ, as ranges of byte offsets.
pub(super) fn differing<'a>(is: &'a [u8], wanted: &'a [u8]) -> impl Iterator<Item = Range<usize>> + 'a {
    let page = |at: usize| at..(at + PAGE).min(wanted.len());
    let differs = move |at: usize| is.get(page(at)) != Some(&wanted[page(at)]);
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < wanted.len() && !differs(at) {
            at += PAGE;
        }
        let start = at;
        while at < wanted.len() && differs(at) {
            at += PAGE;
        }
        (start < wanted.len()).then(|| start..at.min(wanted.len()))
    })
}

fn target_of<'a, 'b>(targets: &'b [(SpaceId, Target<'a>)], space: SpaceId) -> Result<&'b Target<'a>> {
    let found = targets.iter().find(|(known, _)| *known == space);
    found
        .map(|(_, target)| target)
        .ok_or_else(|| EngineError::Incomplete(format!("pages without a process or object: {space:?}")))
}

/// Checks that every page belongs to a process or a shared object.
fn check_spaces(reader: &ImageReader, plan: &Plan) -> Result<()> {
    let objects: Vec<SpaceId> = plan.objects.iter().map(|object| object_space(object.id)).collect();
    for extent in reader.index().extents() {
        if !objects.contains(&extent.space) && plan.space_owner(extent.space).is_none() {
            return Err(EngineError::Incomplete(format!(
                "pages without a process or object: {:?}",
                extent.space
            )));
        }
    }
    Ok(())
}

impl Target<'_> {
    /// Writes bytes to a range that can span several areas (mappings).
    pub(super) fn write(&self, range: AddressRange, bytes: &[u8]) -> Result<()> {
        self.each_part(range, bytes, |at, bytes, area| {
            if area.protection & PROT_WRITE != 0 {
                process_memory::write(self.process.pid, at, bytes)
            } else {
                self.write_protected(at, bytes, area)
            }
        })
    }

    /// Writes bytes to memory that is not writable. Leaves out each page of code that differs from its file only in
    /// breakpoints. A tool has set such a breakpoint from outside (uprobes of tracefs, perf and BPF), and without the
    /// tool, the breakpoint would kill the program. While the tool is active, the kernel sets its breakpoints again in
    /// each new mapping of the file.
    fn write_protected(
        &self,
        at: Address,
        bytes: &[u8],
        area: &AreaRecord,
    ) -> std::result::Result<(), Error> {
        if !area.is_code_of_file() {
            return self.memory.write(at, bytes);
        }
        let mut now = [0; PAGE_BYTES as usize];
        for (index, page) in bytes.chunks(now.len()).enumerate() {
            let at = at + ByteCount(index as u64 * PAGE_BYTES);
            let now = &mut now[..page.len()];
            let is_known = self.memory.read(at, now).is_ok();
            if !is_known || !differs_in_breakpoints_only(page, now) {
                self.memory.write(at, page)?;
            }
        }
        Ok(())
    }

    /// Calls `step` for each part of a range that does not have its content, with the address and the bytes of the part.
    /// The last argument is true if the pages of the part are missing.
    fn each_new_part<'b>(
        &self,
        start: Address,
        bytes: &'b [u8],
        mut step: impl FnMut(Address, &'b [u8], bool) -> std::result::Result<(), Error>,
    ) -> std::result::Result<(), Error> {
        let range = AddressRange::new(start, start + ByteCount(bytes.len() as u64));
        let offsets =
            |part: AddressRange| (part.start - start).get() as usize..(part.end - start).get() as usize;
        let Some(present) = self.present.filter(|present| present.within(range).next().is_some()) else {
            return step(start, bytes, true);
        };
        for part in present.gaps(range) {
            step(part.start, &bytes[offsets(part)], true)?;
        }
        for part in present.within(range) {
            let bytes = &bytes[offsets(part)];
            // process_vm_readv(2) would give the process pages of its own.
            let now = self.memory.read_vec(part.start, part.len())?;
            for new in differing(&now, bytes) {
                step(part.start + ByteCount(new.start as u64), &bytes[new], false)?;
            }
        }
        Ok(())
    }

    /// Splits the bytes of a range at the borders of areas. Leaves out areas that do not exist yet. Calls `step` for each part, with its address, its
    /// bytes, and its area.
    fn each_part<'b>(
        &self,
        range: AddressRange,
        bytes: &'b [u8],
        mut step: impl FnMut(Address, &'b [u8], &AreaRecord) -> std::result::Result<(), Error>,
    ) -> Result<()> {
        let areas = &self.process.areas;
        let first = areas.partition_point(|area| area.end <= range.start.get());
        let mut start = range.start;
        for area in &areas[first..] {
            if area.start > start.get() || start >= range.end {
                break;
            }
            let end = area.range().end.min(range.end);
            let part = (start - range.start).get() as usize..(end - range.start).get() as usize;
            if self.areas.is_none_or(|exists| exists(area)) {
                step(start, &bytes[part], area)?;
            }
            start = end;
        }
        if start < range.end {
            let missing: ByteCount = range.end - start;
            return Err(EngineError::Incomplete(format!("{missing} bytes at {start} belong to no area")));
        }
        Ok(())
    }

    /// Writes zeros to pages that were zero at the checkpoint, if their area maps an object. The zeros hide the
    /// content of the object. New anonymous memory is already zero.
    fn clear(&self, range: AddressRange) -> Result<()> {
        let over_file =
            self.process.areas.iter().any(|area| area.object != 0 && area.range().overlaps(range));
        if !over_file {
            return Ok(());
        }
        let zeros = vec![0; range.len().min(CLEARED_BYTES).get() as usize];
        range
            .pieces(CLEARED_BYTES)
            .try_for_each(|piece| self.write(piece, &zeros[..piece.len().get() as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_pages_that_differ_are_found() {
        let is = vec![0; 5 * PAGE];
        let mut wanted = is.clone();
        assert_eq!(differing(&is, &wanted).count(), 0);
        for at in [PAGE, 2 * PAGE + 5, 5 * PAGE - 1] {
            wanted[at] = 1;
        }
        let found: Vec<_> = differing(&is, &wanted).collect();
        assert_eq!(found, [PAGE..3 * PAGE, 4 * PAGE..5 * PAGE]);
        // A page that could not be read counts as different.
        assert!(differing(&[], &wanted[..PAGE + 1]).eq(std::iter::once(0..PAGE + 1)));
    }
}
