//! The address space of one process: its mappings, and the handles through which it is read.
//!
//! Owns: which pages of each mapping belong to the image; the check whether mappings have changed.
//! Invariants: all handles belong to one program. After execve(2), a process has a new `AddressSpace`.
//! Does not: know objects behind mappings; copy pages.

use std::collections::HashSet;

use image::SpaceId;
use model::{AddressRange, Pid};
use resource::Obstacle;
use resource::memory::{self, AreaOf, Content};
use sys::clock::Clock;
use sys::pagemap::Pagemap;
use tracee::procfs::{self, Area};
use tracee::remote::RemoteContext;
use tracee::{Gadgets, ProcessMemory};
use track::Layout;

use super::area_flags::{FlagState, forget_own_watch};
use crate::error::{EngineError, Result, permission};

/// The flag of areas that may be made writable.
const MAY_WRITE: [u8; 2] = *b"mw";

pub(crate) struct AddressSpace {
    pub(crate) id: SpaceId,
    pub(super) areas: Vec<Area>,
    /// What the image must hold of each area, in the same order; `None` for what the kernel provides.
    pub(super) contents: Vec<Option<Content>>,
    /// Guard regions inside areas; known once the pages were scanned.
    pub(super) guards: Vec<AddressRange>,
    pub(crate) memory: ProcessMemory,
    pub(super) pagemap: Pagemap,
    gadgets: Gadgets,
    /// Tells cheaply whether the areas are still these.
    layout_watch: Layout,
    /// Areas and objects were seen as they were at one moment, and nothing of them stood in the way.
    pub(super) is_settled: bool,
    pub(super) coverage: Coverage,
    pub(super) flags: FlagState,
}

/// What a tracker knows of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Coverage {
    /// No tracker is attached to this very program.
    Untracked,
    /// One is, and has not been told of the areas as they are now.
    Outdated,
    /// One is, and has been.
    Current,
}

impl AddressSpace {
    /// Opens the address space of a process; `tracked` are those that a tracker of ours is attached to.
    pub(super) fn open(pid: Pid, id: SpaceId, tracked: &HashSet<Pid>) -> Result<Self> {
        let memory = ProcessMemory::open(pid).map_err(|error| permission(pid, error))?;
        let mut layout_watch = Layout::open(pid).map_err(|error| permission(pid, error))?;
        let clock = Clock::default();
        let reading = clock.now();
        let mut areas = procfs::areas_with_flags(pid).map_err(|error| permission(pid, error))?;
        let flags = FlagState::read_since(clock, reading);
        forget_own_watch(pid, &mut areas, tracked);
        layout_watch.changed()?;
        let pagemap = Pagemap::open(pid)?;
        let gadgets = match Gadgets::find(&memory, &areas) {
            // It was ending while its code was read.
            Err(_) if !pagemap.is_alive()? => return Err(EngineError::NoProcess(pid)),
            outcome => outcome?,
        };
        Ok(Self {
            id,
            contents: areas.iter().map(|area| content_of(pid, area)).collect(),
            guards: Vec::new(),
            memory,
            pagemap,
            gadgets,
            is_settled: are_listed(&areas, &layout_watch),
            areas,
            layout_watch,
            coverage: Coverage::Untracked,
            flags,
        })
    }

    /// What a remote call in the process needs.
    pub(crate) fn context(&self) -> RemoteContext<'_> {
        RemoteContext { memory: &self.memory, areas: &self.areas, gadgets: self.gadgets }
    }

    /// Whether the areas may be others than those that are known.
    pub(super) fn has_changed(&mut self) -> Result<bool> {
        Ok(self.layout_watch.changed()? || !self.is_settled)
    }

    /// Follows changes of the areas; false when the program itself was replaced and must be looked at anew.
    pub(super) fn follow(&mut self, pid: Pid) -> Result<bool> {
        let mut areas = procfs::areas(pid)?;
        let is_same = !self.layout_watch.listed().is_empty() && self.pagemap.is_alive()?;
        if !is_same || !self.gadgets.are_kept(&self.areas, &areas) {
            return Ok(false);
        }
        for area in &mut areas {
            let first = self.areas.partition_point(|old| old.range.end <= area.range.start);
            let old = self.areas.get(first).filter(|old| old.range.start < area.range.end);
            // Those of another object are not its own.
            if let Some(old) = old.filter(|old| old.backing == area.backing) {
                area.flags = old.flags.clone();
            }
        }
        self.contents = areas.iter().map(|area| content_of(pid, area)).collect();
        self.areas = areas;
        if self.coverage == Coverage::Current {
            self.coverage = Coverage::Outdated;
        }
        self.flags.has_old = true;
        Ok(true)
    }

    /// Shared areas that were new in the pause and had gone when their flags were read: whether the program may write
    /// to them is told by their protection alone, or not at all.
    pub(super) fn infer_flags(&mut self, pid: Pid) -> Vec<Obstacle> {
        let is_unknown =
            |area: &&mut Area| area.flags.is_empty() && area.protection.shared && !area.is_kernel();
        let mut found = Vec::new();
        for area in self.areas.iter_mut().filter(is_unknown) {
            if area.protection.write {
                area.flags.insert(MAY_WRITE);
            } else {
                let of = AreaOf { pid, area };
                let why = "it was mapped just before the checkpoint and gone just after, and its flags are not known";
                found.push(of.obstacle("shared mapping", why, "try again in a moment"));
            }
        }
        found
    }
}

/// Whether areas are those of the last look at a layout: what changes from then on is noticed.
fn are_listed(areas: &[Area], layout: &Layout) -> bool {
    let Some(listed) = procfs::areas_in(layout.listed()) else { return false };
    let is_same = |area: &Area, listed: &Area| {
        let Area { range, protection, offset, backing, name, .. } = area;
        (range, protection, offset) == (&listed.range, &listed.protection, &listed.offset)
            && (backing, name) == (&listed.backing, &listed.name)
    };
    areas.len() == listed.len() && areas.iter().zip(&listed).all(|(area, listed)| is_same(area, listed))
}

fn content_of(pid: Pid, area: &Area) -> Option<Content> {
    let of = AreaOf { pid, area };
    if area.is_kernel() { None } else { memory::kind_of(of).map(|kind| kind.content(of)) }
}
