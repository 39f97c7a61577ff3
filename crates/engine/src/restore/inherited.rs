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
    /// The pages that the heir has in common with its donor.
    pub(super) common: CommonPages,
    /// The areas of the donor from which children keep memory, in address order.
    pub(super) donated: Vec<AddressRange>,
    /// The pages of the donor that children keep.
    pub(super) wanted: RangeSet,
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
            let Some(parent) = plan.living().find(|process| is_forked && process.pid == parent) else {
                continue;
            };
            for area in parent.areas.iter().filter(|area| may_be_kept(parent, area)) {
                chosen.consider(reader, (parent, area), child);
            }
        }
        chosen
    }

    /// Makes a child keep its part of one area of its parent, if the pages have a common content.
    fn consider(&mut self, reader: &ImageReader, of: (&PlannedProcess, &AreaRecord), child: &PlannedProcess) {
        let (parent, whole) = of;
        let spaces = (SpaceId(parent.message.space), SpaceId(child.message.space));
        let (mut kept, mut common) = (Vec::new(), CommonPages::default());
        for area in areas_within(child, whole.range()).filter(|area| may_be_kept(child, area)) {
            if is_part_of(area, whole) {
                let pages = reader.common_pages(spaces.0, spaces.1, area.range());
                common.same_place.extend(pages.same_place.as_slice().iter().copied());
                common.same_checksum.extend(pages.same_checksum.as_slice().iter().copied());
                kept.push(area.range());
            }
        }
        if common.same_place.is_empty() && common.same_checksum.is_empty() {
            return;
        }
        let donor = self.roles.entry(parent.pid).or_default();
        donor.donated.push(whole.range());
        for pages in [&common.same_place, &common.same_checksum] {
            donor.wanted.extend(pages.as_slice().iter().copied());
        }
        donor.donated.sort_unstable();
        donor.donated.dedup();
        let heir = self.roles.entry(child.pid).or_default();
        heir.donor = Some(parent.pid);
        heir.kept.extend(kept);
        heir.common.same_place.extend(Vec::from(common.same_place));
        heir.common.same_checksum.extend(Vec::from(common.same_checksum));
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

/// Returns the areas of a process that overlap a range.
pub(super) fn areas_within(
    process: &PlannedProcess,
    range: AddressRange,
) -> impl Iterator<Item = &AreaRecord> {
    let first = process.areas.partition_point(|area| area.end <= range.start.get());
    process.areas[first..].iter().take_while(move |area| area.start < range.end.get())
}
