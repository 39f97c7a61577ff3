//! The address space of one process: its mappings, and the open files for reading it.
//!
//! Owns: the type of content that the image needs for each mapping; the check whether mappings have changed.
//! Invariants: all open files refer to one program. After execve(2), a process gets a new `AddressSpace`.
//! Does not: know the objects behind mappings; copy pages.

use std::collections::HashSet;

use image::SpaceId;
use model::{AddressRange, Pid};
use resource::Obstacle;
use resource::memory::{self, Content, MappingOf};
use sys::clock::Clock;
use sys::pagemap::Pagemap;
use tracee::procfs::{self, Mapping};
use tracee::remote::RemoteContext;
use tracee::{Gadgets, ProcessMemory};
use track::Layout;

use super::mapping_flags::{FlagState, forget_own_watch};
use crate::error::{EngineError, Result, permission};

/// The flag in `/proc/PID/smaps` of a mapping that can become writable.
const MAY_WRITE: [u8; 2] = *b"mw";

pub(crate) struct AddressSpace {
    pub(crate) id: SpaceId,
    pub(super) mappings: Vec<Mapping>,
    /// The content that the image must contain for each mapping, in the order of `mappings`. `None` for a
    /// mapping that the kernel provides or that no memory kind claims.
    pub(super) contents: Vec<Option<Content>>,
    /// Guard regions inside the mappings. Empty until the pages are scanned.
    pub(super) guards: Vec<AddressRange>,
    pub(crate) memory: ProcessMemory,
    pub(super) pagemap: Pagemap,
    gadgets: Gadgets,
    /// Detects changes of the mappings: compares the text of `/proc/PID/maps` with the text of the last read.
    layout_watch: Layout,
    /// `true` if mappings and objects were read at one moment, and no obstacle was found. If `false`,
    /// `has_changed` reports a change.
    pub(super) is_settled: bool,
    pub(super) coverage: Coverage,
    pub(super) flags: FlagState,
    /// Whether other processes may share pages of this address space, copy-on-write.
    pub(super) may_share: bool,
}

/// The state of the tracker of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Coverage {
    /// No tracker is attached to the present program of the process.
    Untracked,
    /// A tracker is attached, but has not received the present mappings.
    Outdated,
    /// A tracker is attached, and has received the present mappings.
    Current,
}

impl AddressSpace {
    /// Opens the address space of a process. `tracked` contains the processes to which this program has
    /// attached a tracker.
    pub(super) fn open(pid: Pid, id: SpaceId, tracked: &HashSet<Pid>) -> Result<Self> {
        let memory = ProcessMemory::open(pid).map_err(|error| permission(pid, error))?;
        let mut layout_watch = Layout::open(pid).map_err(|error| permission(pid, error))?;
        let clock = Clock::default();
        let reading = clock.now();
        let mut mappings = procfs::mappings_with_flags(pid).map_err(|error| permission(pid, error))?;
        let flags = FlagState::read_since(clock, reading);
        forget_own_watch(pid, &mut mappings, tracked);
        layout_watch.changed()?;
        let pagemap = Pagemap::open(pid)?;
        let gadgets = match Gadgets::find(&memory, &mappings) {
            // The process was ending while its code was read.
            Err(_) if !pagemap.is_alive()? => return Err(EngineError::NoProcess(pid)),
            outcome => outcome?,
        };
        Ok(Self {
            id,
            contents: mappings.iter().map(|mapping| content_of(pid, mapping)).collect(),
            guards: Vec::new(),
            memory,
            pagemap,
            gadgets,
            is_settled: are_listed(&mappings, &layout_watch),
            mappings,
            layout_watch,
            coverage: Coverage::Untracked,
            flags,
            may_share: false,
        })
    }

    /// Returns the context that a remote call needs.
    pub(crate) fn context(&self) -> RemoteContext<'_> {
        RemoteContext { memory: &self.memory, mappings: &self.mappings, gadgets: self.gadgets }
    }

    /// Reports whether the kernel would use huge pages here, because the program has asked for them, or because all programs
    /// have them.
    pub(super) fn has_huge_pages(&self, range: AddressRange, are_always: bool) -> bool {
        let first = self.mappings.partition_point(|mapping| mapping.range.end <= range.start);
        self.mappings.get(first).is_some_and(|mapping| {
            let flags = &mapping.flags;
            mapping.range.start <= range.start && (flags.has("hg") || (are_always && !flags.has("nh")))
        })
    }

    /// Reports whether the mappings may differ from the known mappings.
    pub(super) fn has_changed(&mut self) -> Result<bool> {
        Ok(self.layout_watch.changed()? || !self.is_settled)
    }

    /// Updates the mappings of the same program. Returns `false` if the program was replaced by execve(2), or
    /// if a mapping with needed instructions has changed. The process must then be inspected again.
    pub(super) fn follow(&mut self, pid: Pid) -> Result<bool> {
        let mut mappings = procfs::mappings(pid)?;
        let is_same = !self.layout_watch.listed().is_empty() && self.pagemap.is_alive()?;
        if !is_same || !self.gadgets.are_kept(&self.mappings, &mappings) {
            return Ok(false);
        }
        for mapping in &mut mappings {
            let first = self.mappings.partition_point(|old| old.range.end <= mapping.range.start);
            let old = self.mappings.get(first).filter(|old| old.range.start < mapping.range.end);
            // The flags of another object's mapping do not apply.
            if let Some(old) = old.filter(|old| old.backing == mapping.backing) {
                mapping.flags = old.flags.clone();
            }
        }
        self.contents = mappings.iter().map(|mapping| content_of(pid, mapping)).collect();
        self.mappings = mappings;
        if self.coverage == Coverage::Current {
            self.coverage = Coverage::Outdated;
        }
        self.flags.has_old = true;
        Ok(true)
    }

    /// Sets the missing flags of shared mappings. Such a mapping was new in the pause, and was unmapped
    /// before its flags were read. A writable mapping gets the flag `mw`. For any other mapping, the flags
    /// cannot be inferred, and the function returns an obstacle.
    pub(super) fn infer_flags(&mut self, pid: Pid) -> Vec<Obstacle> {
        let is_unknown = |mapping: &&mut Mapping| {
            mapping.flags.is_empty() && mapping.protection.shared && !mapping.is_kernel()
        };
        let mut found = Vec::new();
        for mapping in self.mappings.iter_mut().filter(is_unknown) {
            if mapping.protection.write {
                mapping.flags.insert(MAY_WRITE);
            } else {
                let of = MappingOf { pid, mapping };
                let why = "it was mapped just before the checkpoint and gone just after, and its flags are not known";
                found.push(of.obstacle("shared mapping", why, "try again in a moment"));
            }
        }
        found
    }
}

/// Reports whether `mappings` are the mappings of the last read of `layout`. If they are, `layout` detects
/// every later change.
fn are_listed(mappings: &[Mapping], layout: &Layout) -> bool {
    let Some(listed) = procfs::mappings_in(layout.listed()) else { return false };
    let is_same = |mapping: &Mapping, listed: &Mapping| {
        let Mapping { range, protection, offset, backing, name, .. } = mapping;
        (range, protection, offset) == (&listed.range, &listed.protection, &listed.offset)
            && (backing, name) == (&listed.backing, &listed.name)
    };
    mappings.len() == listed.len()
        && mappings.iter().zip(&listed).all(|(mapping, listed)| is_same(mapping, listed))
}

fn content_of(pid: Pid, mapping: &Mapping) -> Option<Content> {
    let of = MappingOf { pid, mapping };
    if mapping.is_kernel() { None } else { memory::kind_of(of).map(|kind| kind.content(of)) }
}
