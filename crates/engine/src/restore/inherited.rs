//! Chooses the memory that processes of a restored tree share copy-on-write.
//!
//! Only fork(2) makes processes share pages. So a restore fills the common pages of a process before it creates the
//! children of the process. A *donor* is a process whose child keeps pages. The child is an *heir*. An heir can be the
//! donor of its own children.
//!
//! Owns: the choice of the mappings that heirs keep; the record of the pages that exist before the mappings of all
//! processes are created.
//! Invariants: only private mappings are kept, with equal attributes in both processes, and each as a part of one mapping
//! of the donor. So the kernel merges mappings of the heir as rarely as it did before the checkpoint.
//! Does not: change a process; `fork_memory` does.

use std::collections::HashMap;

use image::{Extent, SpaceId};
use model::{AddressRange, Pid, RangeSet};
use resource::memory::AreaRecord;
use store::{CommonPages, ImageReader};

use super::lazy;
use super::plan::{Plan, PlannedProcess};
use crate::relations::Birth;

/// A child without any use for this number of bytes of its parent's memory is created without this memory. To create the
/// page tables for less memory takes less time than the calls that prevent it.
const USELESS_BYTES_MIN: u64 = 4 << 20;

/// The donors and heirs of a tree.
#[derive(Default)]
pub(super) struct Inherited {
    pub(super) roles: HashMap<Pid, Role>,
}

/// The memory of one donor or heir.
#[derive(Default)]
pub(super) struct Role {
    pub(super) donor: Option<Pid>,
    /// The areas (mappings) that the heir keeps, in address order.
    pub(super) kept: Vec<AddressRange>,
    /// The pages that certainly have the same content in the heir and its donor.
    pub(super) same: RangeSet,
    /// The areas of the donor from which children keep memory, in address order.
    pub(super) donated: Vec<AddressRange>,
    /// The pages of the donor that children keep.
    pub(super) wanted: RangeSet,
    /// The same pages, once for each child, while the heirs are chosen.
    requested: Vec<AddressRange>,
    /// The pages that exist in the areas of `kept` and `donated`.
    pub(super) present: RangeSet,
    /// The pages that have their final content.
    pub(super) complete: RangeSet,
}

impl Inherited {
    /// Chooses the donors and heirs.
    pub(super) fn choose(reader: &ImageReader, plan: &Plan) -> Self {
        let (births, mut chosen) = (plan.births(), Self::default());
        for child in plan.living() {
            let parent = Pid(child.message.parent);
            let is_forked = matches!(births.birth(child.pid), Birth::EarlyChild | Birth::Child);
            let parent = plan.living().find(|process| is_forked && process.pid == parent);
            if let Some(parent) = parent {
                chosen.consider(reader, parent, child);
            }
        }
        for donor in chosen.roles.values_mut() {
            donor.donated.sort_unstable();
            donor.donated.dedup();
            donor.wanted = std::mem::take(&mut donor.requested).into();
        }
        chosen
    }

    /// Makes a child keep its parts of the areas of its parent in which both have common pages.
    fn consider(&mut self, reader: &ImageReader, parent: &PlannedProcess, child: &PlannedProcess) {
        let (mut donated, mut kept, mut places, mut checksums) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for whole in parent.areas.iter().filter(|area| may_be_kept(parent, area)) {
            let parts = areas_within(child, whole.range());
            let parts = parts.filter(|area| may_be_kept(child, area) && is_part_of(area, whole));
            let parts: Vec<AddressRange> = parts.map(AreaRecord::range).collect();
            let common = parts.iter().map(|part| common_pages(reader, parent, child, *part));
            let common: Vec<CommonPages> = common.filter(|common| !common.is_empty()).collect();
            if common.is_empty() {
                continue;
            }
            donated.push(whole.range());
            kept.extend(parts);
            for common in common {
                places.extend_from_slice(common.same_place.as_slice());
                checksums.extend_from_slice(common.same_checksum.as_slice());
            }
        }
        if donated.is_empty() {
            return;
        }
        let donor = self.roles.entry(parent.pid).or_default();
        donor.donated.append(&mut donated);
        donor.requested.extend(places.iter().chain(&checksums));
        let heir = self.roles.entry(child.pid).or_default();
        (heir.donor, heir.kept, heir.same) = (Some(parent.pid), kept, places.into());
    }

    /// Reports whether an area of a process exists before the other areas are mapped.
    pub(super) fn has(&self, pid: Pid, area: &AreaRecord) -> bool {
        self.roles.get(&pid).is_some_and(|role| role.has(area))
    }

    /// Reports whether a process is a donor or an heir. If so, its address space contains no mapping of this program.
    pub(super) fn is_part(&self, pid: Pid) -> bool {
        self.roles.contains_key(&pid)
    }

    /// Returns the existing pages of a process. Some of them may not have their final content.
    pub(super) fn present(&self, pid: Pid) -> Option<&RangeSet> {
        self.roles.get(&pid).map(|role| &role.present)
    }

    /// Reports whether all pages of an extent of this process have their final content.
    pub(super) fn is_complete(&self, pid: Pid, extent: &Extent) -> bool {
        self.roles.get(&pid).is_some_and(|role| role.complete.gaps(extent.range()).next().is_none())
    }

    /// Returns the areas of a donor that a child should not get a copy of.
    pub(super) fn useless(&self, parent: Pid, child: Pid) -> Vec<AddressRange> {
        let Some(donor) = self.roles.get(&parent) else { return Vec::new() };
        let kept = self.roles.get(&child).map_or(&[][..], |heir| &heir.kept);
        let is_useless = |area: &&AddressRange| !kept.iter().any(|kept| kept.overlaps(**area));
        let useless: Vec<AddressRange> = donor.donated.iter().filter(is_useless).copied().collect();
        let pages = useless.iter().flat_map(|area| donor.present.within(*area));
        let bytes: u64 = pages.map(|pages| pages.len().get()).sum();
        if bytes < USELESS_BYTES_MIN { Vec::new() } else { useless }
    }
}

impl Role {
    pub(super) fn has(&self, area: &AreaRecord) -> bool {
        self.kept.binary_search(&area.range()).is_ok() || self.donated.binary_search(&area.range()).is_ok()
    }

    /// Reports whether an area must be mapped for the children, because the heir has not kept it.
    pub(super) fn is_new(&self, area: &AreaRecord) -> bool {
        self.has(area) && self.kept.binary_search(&area.range()).is_err()
    }
}

fn common_pages(
    reader: &ImageReader,
    parent: &PlannedProcess,
    child: &PlannedProcess,
    range: AddressRange,
) -> CommonPages {
    reader.common_pages(SpaceId(parent.message.space), SpaceId(child.message.space), range)
}

/// Reports whether an area is private, and has no property that fork(2) does not copy. Code of a file is not kept,
/// because tools can set breakpoints in it.
fn may_be_kept(process: &PlannedProcess, area: &AreaRecord) -> bool {
    !area.shared && !area.is_code_of_file() && lazy::is_plain(process, area)
}

/// Reports whether an area of a child can be a part of an area of its parent.
fn is_part_of(area: &AreaRecord, whole: &AreaRecord) -> bool {
    let offset = |area: &AreaRecord| if area.object == 0 { 0 } else { area.offset.wrapping_sub(area.start) };
    whole.start <= area.start
        && area.end <= whole.end
        && (area.object, offset(area)) == (whole.object, offset(whole))
        && (&area.flags, &area.name) == (&whole.flags, &whole.name)
        && area.code_was_writable == whole.code_was_writable
}

pub(super) fn areas_within(
    process: &PlannedProcess,
    range: AddressRange,
) -> impl Iterator<Item = &AreaRecord> {
    let first = process.areas.partition_point(|area| area.end <= range.start.get());
    process.areas[first..].iter().take_while(move |area| area.start < range.end.get())
}
