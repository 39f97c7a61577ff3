//! One living process of a subject: what is known of it before it is stopped, and what a stop takes of it.
//!
//! Owns: its handles, its areas and what the image must hold of each, the check whether they have changed.
//! Invariants: what was opened is of this very program, or the process is looked at anew.
//! Does not: know other processes, or descriptors.

use std::collections::HashSet;

use image::SpaceId;
use model::{AddressRange, Pid, Signal, Tid};
use resource::Obstacle;
use resource::memory::{self, AreaOf, Content};
use resource::state::RawState;
use sys::clock::Clock;
use sys::kcmp;
use sys::pagemap::Pagemap;
use sys::ptrace::Registers;
use tracee::procfs::{self, Area, Stat};
use tracee::{Gadgets, ProcessMemory};
use track::Layout;

use super::area_flags::FlagState;
use super::layout_record;
use super::objects::Objects;
use super::own_watch::forget_own_watch;
use crate::error::{EngineError, Result};
use crate::obstacles;
use crate::records::ProcessMessage;

/// The flag of areas that may be made writable.
const MAY_WRITE: [u8; 2] = *b"mw";

/// One living process.
pub(super) struct ProcessBefore {
    pub(super) stat: Stat,
    pub(super) space: SpaceId,
    pub(super) areas: Vec<Area>,
    /// What the image must hold of each area, in the same order; `None` for what the kernel provides.
    pub(super) contents: Vec<Option<Content>>,
    /// Guard regions inside areas; known once the pages were scanned.
    pub(super) guards: Vec<AddressRange>,
    pub(super) memory: ProcessMemory,
    pub(super) pagemap: Pagemap,
    pub(super) gadgets: Gadgets,
    pub(super) executable: u64,
    pub(super) auxiliary_vector: Vec<u8>,
    pub(super) stop_signal: Option<Signal>,
    pub(super) threads: Vec<ThreadState>,
    /// Tells cheaply whether the areas are still these.
    pub(super) layout_watch: Layout,
    /// Areas and objects were seen as they were at one moment, and nothing of them stood in the way.
    pub(super) is_settled: bool,
    /// A tracker was attached to this very program.
    pub(super) is_tracked: bool,
    /// It has been told of the areas.
    pub(super) is_covered: bool,
    pub(super) flags: FlagState,
    /// Its memory was its parent's when it was looked at, as it is between vfork and exec. What was opened then stays
    /// with the parent's, which lives on, so that nothing tells when this process has its own.
    pub(super) is_borrowed: bool,
}

/// What is taken of one thread.
pub(super) struct ThreadState {
    pub(super) tid: Tid,
    pub(super) registers: Registers,
    pub(super) extended_state: Vec<u8>,
    pub(super) signal_mask: u64,
    /// Raw bytes by position in the registry of state kinds.
    pub(super) raw: Vec<Option<RawState>>,
}

impl ProcessBefore {
    /// Inspects a process; `tracked` are those that a tracker of ours is attached to.
    pub(super) fn look(
        pid: Pid,
        stat: Stat,
        space: SpaceId,
        objects: &mut Objects,
        tracked: &HashSet<Pid>,
    ) -> Result<Self> {
        // Asked first: what is opened before a process has its own memory is not its own.
        let is_borrowed = kcmp::shared(kcmp::Shared::Memory, pid, stat.ppid).unwrap_or(false);
        if let Some(obstacle) = obstacles::of_architecture(pid) {
            return Err(EngineError::Refused(vec![obstacle]));
        }
        let memory = ProcessMemory::open(pid).map_err(|error| permission(pid, error))?;
        let mut layout_watch = Layout::open(pid).map_err(|error| permission(pid, error))?;
        let clock = Clock::default();
        let reading = clock.now();
        let mut areas = procfs::areas_with_flags(pid).map_err(|error| permission(pid, error))?;
        let flags = FlagState::read_since(clock, reading);
        forget_own_watch(pid, &mut areas, tracked);
        layout_watch.changed()?;
        let is_listed = are_listed(&areas, &layout_watch);
        let pagemap = Pagemap::open(pid)?;
        let gadgets = match Gadgets::find(&memory, &areas) {
            // It was ending while its code was read.
            Err(_) if !pagemap.is_alive()? => return Err(EngineError::NoProcess(pid)),
            outcome => outcome?,
        };
        let auxiliary_vector = procfs::read(format!("/proc/{pid}/auxv"))?;
        let is_settled = objects.look(pid, &areas) && is_listed;
        let executable = match objects.executable(pid, &areas)? {
            Some(object) => object,
            // The program was replaced by exec during the scan.
            None if !is_settled || is_borrowed || layout_watch.changed()? => return Err(replaced(pid)),
            None => return Err(EngineError::Refused(vec![obstacles::of_executable(pid)])),
        };
        Ok(Self {
            stat,
            space,
            contents: areas.iter().map(|area| content_of(pid, area)).collect(),
            areas,
            guards: Vec::new(),
            memory,
            pagemap,
            gadgets,
            executable,
            auxiliary_vector,
            stop_signal: None,
            threads: Vec::new(),
            layout_watch,
            is_settled,
            is_tracked: false,
            is_covered: false,
            flags,
            is_borrowed,
        })
    }

    /// Whether what is known is of the process that `stat` was read of.
    pub(super) fn is_of(&self, stat: &Stat) -> bool {
        self.stat.may_be_program_of(stat) && !self.is_borrowed
    }

    /// Follows changes of the areas; false when the program itself was replaced and must be looked at anew.
    pub(super) fn follow_areas(&mut self, pid: Pid) -> Result<bool> {
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
        self.is_covered = false;
        self.flags.expire();
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

    pub(super) fn message(&self) -> ProcessMessage {
        ProcessMessage {
            stop_signal: self.stop_signal.map_or(0, Signal::get),
            threads: self.threads.iter().map(|thread| thread.tid.get()).collect(),
            executable: self.executable,
            layout: Some(layout_record::of(&self.stat, &self.areas, &self.auxiliary_vector)),
            space: self.space.0,
            ..relations(&self.stat)
        }
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

fn replaced(pid: Pid) -> EngineError {
    sys::Error::process("find the program of", pid, sys::Errno::ENOENT).into()
}

fn content_of(pid: Pid, area: &Area) -> Option<Content> {
    let of = AreaOf { pid, area };
    if area.is_kernel() { None } else { memory::kind_of(of).map(|kind| kind.content(of)) }
}

pub(super) fn relations(stat: &Stat) -> ProcessMessage {
    ProcessMessage {
        pid: stat.pid.get(),
        parent: stat.ppid.get(),
        group: stat.pgrp.get(),
        session: stat.session.get(),
        exit_signal: Some(stat.exit_signal),
        foreground: (stat.tty_nr != 0).then_some(stat.tpgid),
        ..ProcessMessage::default()
    }
}

pub(super) fn permission(pid: Pid, error: sys::Error) -> EngineError {
    if error.errno == sys::Errno::EACCES || error.errno == sys::Errno::EPERM {
        EngineError::Permission { pid, why: error.to_string() }
    } else {
        error.into()
    }
}
