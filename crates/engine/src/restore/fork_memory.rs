//! Prepares the memory of donors and heirs while the processes of a tree are created. A *donor* is a process whose child
//! keeps pages, and the child is an *heir* (`inherited`).
//!
//! Owns: the order of the steps for a new process: keep mappings of the donor, map and fill what its own children keep.
//! Invariants: an heir has no page of its donor that the checkpoint of the heir does not contain. A page of the donor
//! with another content stays recorded as incomplete, and is overwritten before the program runs.
//! Does not: create processes, or choose donors and heirs.

use image::{Extent, SpaceId};
use model::{AddressRange, ByteCount, PAGE_BYTES, RangeSet};
use store::ImageReader;
use tracee::Stub;
use tracee::arch::numbers as nr;

use super::built::Built;
use super::content::{self, Target};
use super::files::OpenFiles;
use super::fresh::FreshMemory;
use super::inherited::{Inherited, Role, areas_within};
use super::layout;
use super::plan::{Plan, PlannedProcess};
use crate::error::Result;

const MADV_DONTNEED: u64 = 4;
const MADV_DONTFORK: u64 = 10;
const MADV_DOFORK: u64 = 11;

/// Pages that an heir discards in one call can have this distance. The pages between them are discarded, too, and filled
/// again. Without this limit, thousands of single pages would need thousands of calls.
const GAP_BYTES: ByteCount = ByteCount(16 * PAGE_BYTES);

/// Prepares the memory of a new process, before its children are created. Does nothing for a process that is neither a
/// donor nor an heir.
pub(super) fn prepare(
    inherited: &mut Inherited,
    (reader, plan, open): (&ImageReader, &Plan, &OpenFiles),
    process: &PlannedProcess,
    built: &mut Built,
) -> Result<()> {
    let Some(mut role) = inherited.roles.remove(&process.pid) else { return Ok(()) };
    let scratch = built.scratch;
    let target = built.get(process.pid)?;
    layout::clear(target.leader().0, scratch, &role.kept)?;
    let donor = plan.living().find(|other| Some(other.pid) == role.donor);
    if let Some(donor) = donor
        && let Some(present) = inherited.present(donor.pid)
    {
        keep(&mut role, (donor, present), process, reader, target.leader().0)?;
    }
    for area in process.areas.iter().filter(|area| role.is_new(area)) {
        layout::map(area, open, target)?;
        layout::advise_before_pages(area, target.leader().0)?;
    }
    fill(&mut role, reader, process, built)?;
    inherited.roles.insert(process.pid, role);
    Ok(())
}

/// Makes fork(2) leave out these areas of a process, or copy them again.
pub(super) fn leave_out(stub: &mut Stub, areas: &[AddressRange], is_left_out: bool) -> Result<()> {
    let advice = if is_left_out { MADV_DONTFORK } else { MADV_DOFORK };
    for area in areas {
        stub.call(nr::MADVISE, [area.start.get(), area.len().get(), advice, 0, 0, 0])?;
    }
    Ok(())
}

/// Makes an heir keep its areas of the donor. Discards the pages of the donor that the heir does not have.
fn keep(
    role: &mut Role,
    (donor, present): (&PlannedProcess, &RangeSet),
    process: &PlannedProcess,
    reader: &ImageReader,
    stub: &mut Stub,
) -> Result<()> {
    let stored: RangeSet = stored(reader, process).iter().map(Extent::range).collect();
    for kept in &role.kept {
        let (start, length) = (kept.start.get(), kept.len().get());
        let (area, before) = (areas_within(process, *kept).next(), areas_within(donor, *kept).next());
        if let Some((area, before)) = area.zip(before)
            && area.protection != before.protection
        {
            stub.call(nr::MPROTECT, [start, length, u64::from(area.protection), 0, 0, 0])?;
        }
        let here: RangeSet = present.within(*kept).collect();
        let surplus = joined(here.difference(&stored));
        for range in &surplus {
            let call = [range.start.get(), range.len().get(), MADV_DONTNEED, 0, 0, 0];
            stub.call(nr::MADVISE, call)?;
        }
        role.present.extend(here.difference(&surplus.into()));
    }
    role.complete = role.present.as_slice().iter().flat_map(|range| role.same.within(*range)).collect();
    Ok(())
}

/// Fills the pages of a donor that its children keep.
fn fill(role: &mut Role, reader: &ImageReader, process: &PlannedProcess, built: &mut Built) -> Result<()> {
    let is_due = |extent: &Extent| {
        let range = extent.range();
        role.wanted.within(range).next().is_some() && role.complete.gaps(range).next().is_some()
    };
    let mut due = stored(reader, process);
    due.retain(is_due);
    if due.is_empty() {
        return Ok(());
    }
    let fresh = FreshMemory::of(process, &role.donated, &due, built)?;
    let memory = &built.processes[&process.pid].memory;
    let exists = |area: &_| role.has(area);
    let target = Target { process, memory, present: Some(&role.present), areas: Some(&exists) };
    content::fill_extents(reader, &[(SpaceId(process.message.space), target)], &fresh, &due)?;
    fresh.end()?;
    let areas: RangeSet = role.kept.iter().chain(&role.donated).copied().collect();
    let ranges = due.iter().flat_map(|extent| areas.within(extent.range()));
    let filled: RangeSet = ranges.collect();
    role.present.extend(filled.as_slice().iter().copied());
    role.complete.extend(Vec::from(filled));
    Ok(())
}

/// Returns the stored extents of a process; zero pages are left out.
fn stored(reader: &ImageReader, process: &PlannedProcess) -> Vec<Extent> {
    let all = reader.index().of_space(SpaceId(process.message.space)).iter();
    all.filter(|extent| extent.stored().is_some()).copied().collect()
}

/// Joins ranges with a short distance.
fn joined(ranges: impl Iterator<Item = AddressRange>) -> Vec<AddressRange> {
    let mut joined: Vec<AddressRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start - last.end <= GAP_BYTES => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use model::Address;

    use super::*;

    #[test]
    fn ranges_with_a_short_distance_are_discarded_in_one_call() {
        let range =
            |first: u64, end: u64| AddressRange::new(Address(first * PAGE_BYTES), Address(end * PAGE_BYTES));
        let ranges = [range(1, 2), range(18, 20), range(37, 38)];
        assert_eq!(joined(ranges.into_iter()), [range(1, 20), range(37, 38)]);
    }
}
