//! The processes of a subject, and their state between two checkpoints.
//!
//! Owns: the list of processes, including zombies; the check for changes since the last scan.
//! Invariants: after `settle`, the state exactly describes the stopped tree.
//! Does not: read pages, descriptors or thread state.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use image::{Owner, RecordSet, SpaceId};
use model::{PageCount, Pid};
use resource::memory;
use sys::clock;
use sys::mapping_changes::MappingChanges;
use tracee::procfs::{self, KeptFiles, Mapping, Stat};
use tracee::{Roots, StoppedProcess, StoppedTree, tree};
use track::Moment;

use super::objects::Objects;
use super::process::{Process, relations};
use crate::error::{EngineError, Result, permission};
use crate::obstacles;
use crate::records::{AreasMessage, EngineRecord, ProcessMessage, TreeMessage};
use crate::sharing;

#[derive(Default)]
pub(super) struct Processes {
    pub(super) roots: Roots,
    /// Every process, including zombies. The roots come first, and parents precede their children.
    pub(super) order: Vec<Pid>,
    pub(super) living: HashMap<Pid, Process>,
    zombies: HashMap<Pid, Stat>,
    /// Processes to which a tracker was attached.
    pub(super) attached: HashSet<Pid>,
    /// `true` if the subject is checkpointed repeatedly. Changed mappings are then updated inside the pause
    /// without a complete inspection of the process.
    pub(super) is_continuous: bool,
    vdso_checksum: u32,
    /// Tells whether the mappings of a process can have changed since the last read.
    changes: MappingChanges,
}

impl Processes {
    pub(super) fn of(roots: &Roots) -> Self {
        Self { roots: roots.clone(), ..Self::default() }
    }

    /// Returns the living processes. Parents precede their children.
    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.order.iter().copied().filter(|pid| self.living.contains_key(pid))
    }

    /// Returns the mappings of each living process. Parents precede their children.
    pub(super) fn view(&self) -> Vec<(Pid, &[Mapping])> {
        let known = self.order.iter().filter_map(|pid| Some((*pid, self.living.get(pid)?)));
        known.map(|(pid, process)| (pid, process.space.mappings.as_slice())).collect()
    }

    /// Scans the processes of a tree, through the files that are kept open. Only new processes are inspected completely.
    pub(super) fn survey(&mut self, objects: &mut Objects, files: &mut KeptFiles) -> Result<()> {
        let listed = tree::with_threads(files, &self.roots);
        let listed = listed.map_err(|error| no_process(self.roots.first(), error))?;
        self.order = listed.into_iter().map(|(pid, _)| pid).collect();
        self.zombies.clear();
        let mut space = self.next_space();
        let mut known = std::mem::take(&mut self.living);
        for pid in self.order.clone() {
            let stat = match procfs::stat_through(files, pid) {
                Ok(stat) => stat,
                // The process ended after it was listed. The stop updates the list.
                Err(error) if is_gone(&error) && !self.roots.contains(pid) => continue,
                Err(error) => return Err(no_process(pid, error)),
            };
            if stat.is_zombie() {
                self.zombies.insert(pid, stat);
                continue;
            }
            if let Some(mut process) = known.remove(&pid).filter(|process| process.is_of(&stat)) {
                process.stat = stat;
                self.living.insert(pid, process);
                continue;
            }
            match Process::inspect(pid, stat, space, objects, &self.attached) {
                Ok(process) => {
                    self.living.insert(pid, process);
                    space.0 += 1;
                }
                Err(error) if error.says_gone() && !self.roots.contains(pid) => {}
                // The process has just started, and lacks the code for remote calls (system calls that a
                // stopped thread executes for this program). It is inspected in the pause.
                Err(error)
                    if error.lacks_code().is_some() && !self.roots.contains(pid) && self.is_continuous => {}
                Err(error) => return Err(error),
            }
        }
        self.note_forks();
        match self.roots.iter().find(|root| !self.living.contains_key(root)) {
            None => Ok(()),
            Some(root) => Err(EngineError::NoProcess(root)),
        }
    }

    fn next_space(&self) -> SpaceId {
        SpaceId(self.living.values().map(|process| process.space.id.0 + 1).max().unwrap_or(0))
    }

    /// Returns the approximate number of resident pages that the processes share with no file.
    pub(super) fn own_pages(&self) -> PageCount {
        let known = self.living.keys().filter_map(|pid| procfs::own_pages(*pid).ok());
        PageCount(known.map(PageCount::get).sum())
    }

    /// Updates the processes and their mappings to the state of a stopped tree.
    pub(super) fn settle(&mut self, stopped: &StoppedTree, objects: &mut Objects) -> Result<()> {
        // These obstacles belong to mappings of the running subject. Processes with such obstacles are
        // inspected again.
        objects.gone.clear();
        let mut order: Vec<Pid> = stopped.processes.iter().map(|process| process.pid).collect();
        order.extend(&stopped.zombies);
        self.order = self.parents_first(order)?;
        self.zombies.clear();
        for pid in &stopped.zombies {
            self.living.remove(pid);
            self.zombies.insert(*pid, procfs::stat(*pid)?);
        }
        self.living.retain(|pid, _| stopped.process(*pid).is_some());
        for process in &stopped.processes {
            self.settle_process(process, objects)?;
        }
        for (pid, process) in &mut self.living {
            let parent = process.stat.ppid;
            process.shares =
                if stopped.process(parent).is_some() { sharing::with_parent(*pid, parent) } else { 0 };
        }
        self.note_forks();
        Ok(())
    }

    /// Records whether the processes may share pages with each other, or with a parent outside the tree. The original
    /// parent of a process is not known, so the result is the same for all processes.
    fn note_forks(&mut self) {
        let may_share = self.living.values().any(|process| process.stat.is_forked());
        self.living.values_mut().for_each(|process| process.space.may_share = may_share);
    }

    fn settle_process(&mut self, stopped: &StoppedProcess, objects: &mut Objects) -> Result<()> {
        let pid = stopped.pid;
        let stat = stopped.stat.clone().map_or_else(|| procfs::stat(pid), Ok)?;
        let mut known = self.living.get_mut(&pid).filter(|process| process.is_of(&stat));
        let has_changed = known.as_mut().map_or(Ok(true), |process| process.space.has_changed())?;
        if !has_changed {
            if let Some(process) = known {
                process.stat = stat;
            }
            return Ok(());
        }
        if let Some(process) = known.filter(|_| self.is_continuous)
            && process.space.follow(pid)?
        {
            objects.inspect(pid, &process.space.mappings);
            process.stat = stat;
        } else {
            let space = self.living.get(&pid).map_or_else(|| self.next_space(), |process| process.space.id);
            let inspected = Process::inspect(pid, stat, space, objects, &self.attached);
            let process = inspected.map_err(EngineError::or_refusal)?;
            let is_borrowed = process.is_borrowed;
            self.living.insert(pid, process);
            if is_borrowed {
                let stats: Vec<Stat> = self.living.values().map(|process| process.stat.clone()).collect();
                let births = obstacles::births_of(&stats);
                return Err(EngineError::Refused(sharing::obstacles(&self.view(), &stats, &births)));
            }
        }
        self.refuse_mappings(pid, Moment::Stopped, objects)
    }

    fn refuse_mappings(&mut self, pid: Pid, moment: Moment, objects: &mut Objects) -> Result<()> {
        let Some(process) = self.living.get_mut(&pid) else { return Ok(()) };
        let mut found = memory::obstacles(pid, &process.space.mappings);
        found.extend(objects.take_obstacles(moment));
        // A refused process is inspected again, even if it does not change.
        process.space.is_settled = found.is_empty();
        if found.is_empty() { Ok(()) } else { Err(EngineError::Refused(found)) }
    }

    /// Reads the flags of mappings that were new in the pause. Returns `Refused` if the flags show an obstacle. The
    /// flags are not read inside the pause, because the kernel needs too much time for the read.
    pub(super) fn complete_mappings(&mut self, objects: &mut Objects) -> Result<()> {
        let mut completed = Vec::new();
        let mut unknown = Vec::new();
        let of_all = self.living.values().map(|process| process.space.flags.cost).sum();
        for (pid, Process { space, .. }) in &mut self.living {
            let is_due = space.flags.has_old;
            match space.flags.complete(*pid, &mut space.mappings, of_all, &mut self.changes) {
                // The process has ended since the pause. Its captured state stays valid.
                Err(error) if error.says_gone() => {}
                outcome => completed.extend(outcome?.then_some(*pid)),
            }
            if is_due {
                let found = space.infer_flags(*pid);
                // The flags are read again after the next pause.
                space.is_settled &= found.is_empty();
                unknown.extend(found);
                objects.mark_writable(&space.mappings);
            }
        }
        if !unknown.is_empty() {
            for pid in completed {
                self.living.get_mut(&pid).into_iter().for_each(|process| process.space.is_settled = false);
            }
            return Err(EngineError::Refused(unknown));
        }
        // All processes are checked, even after a failure. Otherwise an unchecked process would count as
        // accepted.
        let outcomes: Vec<_> =
            completed.into_iter().map(|pid| self.refuse_mappings(pid, Moment::Running, objects)).collect();
        outcomes.into_iter().collect()
    }

    /// Sorts the processes so that parents precede their children. A restore creates processes in this order,
    /// but the stopped tree lists living processes and zombies separately.
    fn parents_first(&self, mut pids: Vec<Pid>) -> Result<Vec<Pid>> {
        let mut sorted: Vec<Pid> = self.roots.iter().collect();
        pids.retain(|pid| !self.roots.contains(*pid));
        let mut parents = HashMap::new();
        for pid in &pids {
            parents.insert(*pid, procfs::stat(*pid)?.ppid);
        }
        while !pids.is_empty() {
            let (ready, rest): (Vec<Pid>, Vec<Pid>) =
                pids.iter().partition(|pid| sorted.contains(&parents[*pid]));
            if ready.is_empty() {
                return Err(EngineError::Changed(format!("pid {} left the tree", pids[0])));
            }
            sorted.extend(ready);
            pids = rest;
        }
        Ok(sorted)
    }

    /// Reads the code of the vDSO and computes its checksum. The code is the same in all processes. The tree
    /// must have been scanned before.
    pub(super) fn read_vdso(&mut self) -> Result<()> {
        let Some(Process { space, .. }) = self.living.get(&self.roots.first()) else { return Ok(()) };
        if let Some(mapping) = space.mappings.iter().find(|mapping| mapping.name == "[vdso]") {
            let code = space.memory.read_vec(mapping.range.start, mapping.range.len())?;
            self.vdso_checksum = image::Checksum::of(&code).get();
        }
        Ok(())
    }

    /// Adds the records of the tree, of its processes and of their mappings.
    pub(super) fn write(&self, objects: &Objects, records: &mut RecordSet) {
        let pids = self.order.iter().map(|pid| pid.get()).collect();
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let tree = TreeMessage {
            pids,
            roots: u32::try_from(self.roots.count()).unwrap_or(u32::MAX),
            vdso_checksum: self.vdso_checksum,
            boot: clock::boot_id(),
            monotonic_ns: nanoseconds(clock::monotonic()),
            boottime_ns: nanoseconds(clock::boottime()),
        };
        tree.put(records, Owner::Tree);
        for pid in &self.order {
            if let Some(process) = self.living.get(pid) {
                process.message().put(records, Owner::Process(*pid));
                let mappings = process.space.mappings.iter().filter(|mapping| !mapping.is_kernel());
                let mappings = mappings.map(|mapping| objects.mapping_record(mapping)).collect();
                let guards = process.space.guards.iter();
                let guards = guards.flat_map(|guard| [guard.start.get(), guard.end.get()]).collect();
                AreasMessage { areas: mappings, guards }.put(records, Owner::Process(*pid));
            } else if let Some(stat) = self.zombies.get(pid) {
                let zombie = ProcessMessage { zombie: true, exit_code: stat.exit_code, ..relations(stat) };
                zombie.put(records, Owner::Process(*pid));
            }
        }
    }
}

fn is_gone(error: &sys::Error) -> bool {
    error.errno == sys::Errno::ESRCH || error.errno == sys::Errno::ENOENT
}

fn no_process(pid: Pid, error: sys::Error) -> EngineError {
    if is_gone(&error) { EngineError::NoProcess(pid) } else { permission(pid, error) }
}
