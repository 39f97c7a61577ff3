//! The processes of a subject, and their state between two checkpoints.
//!
//! Owns: the list of processes, living or not; the check for changes since the last scan.
//! Invariants: after `settle` it describes the stopped tree exactly.
//! Does not: read pages, descriptors or thread state.

use std::collections::{HashMap, HashSet};

use image::{Owner, RecordSet, SpaceId};
use model::{PageCount, Pid};
use resource::memory;
use tracee::procfs::{self, Area, Stat};
use tracee::{StoppedProcess, StoppedTree, tree};
use track::Moment;

use super::objects::Objects;
use super::process::{Process, relations};
use crate::error::{EngineError, Result, permission};
use crate::records::{AreasMessage, EngineRecord, ProcessMessage, TreeMessage};
use crate::sharing;

#[derive(Default)]
pub(super) struct Processes {
    pub(super) root: Pid,
    /// Every process, zombies included, parents first.
    pub(super) order: Vec<Pid>,
    pub(super) living: HashMap<Pid, Process>,
    zombies: HashMap<Pid, Stat>,
    /// Processes that a tracker was attached to.
    pub(super) attached: HashSet<Pid>,
    /// Looked at again and again: areas that change are followed, and not looked at closely inside the pause.
    pub(super) is_continuous: bool,
    vdso_checksum: u32,
}

impl Processes {
    pub(super) fn of(root: Pid) -> Self {
        Self { root, ..Self::default() }
    }

    /// The living ones, parents first.
    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.order.iter().copied().filter(|pid| self.living.contains_key(pid))
    }

    /// The areas of each, parents first.
    pub(super) fn view(&self) -> Vec<(Pid, &[Area])> {
        let known = self.order.iter().filter_map(|pid| Some((*pid, self.living.get(pid)?)));
        known.map(|(pid, process)| (pid, process.space.areas.as_slice())).collect()
    }

    /// Scans the processes of a tree: only the new ones closely.
    pub(super) fn survey(&mut self, objects: &mut Objects) -> Result<()> {
        self.order = tree::descendants(self.root).map_err(|error| no_process(self.root, error))?;
        self.zombies.clear();
        let mut space = self.next_space();
        let mut known = std::mem::take(&mut self.living);
        for pid in self.order.clone() {
            let stat = match procfs::stat(pid) {
                Ok(stat) => stat,
                // It ended between the listing and now; the stop will tell.
                Err(error) if is_gone(&error) && pid != self.root => continue,
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
            match Process::look(pid, stat, space, objects, &self.attached) {
                Ok(process) => {
                    self.living.insert(pid, process);
                    space.0 += 1;
                }
                Err(error) if error.says_gone() && pid != self.root => {}
                // It has hardly begun, and is looked at in the pause.
                Err(error) if error.lacks_code().is_some() && pid != self.root && self.is_continuous => {}
                Err(error) => return Err(error),
            }
        }
        if self.living.contains_key(&self.root) { Ok(()) } else { Err(EngineError::NoProcess(self.root)) }
    }

    fn next_space(&self) -> SpaceId {
        SpaceId(self.living.values().map(|process| process.space.id.0 + 1).max().unwrap_or(0))
    }

    /// Pages that its processes share with no file, about.
    pub(super) fn own_pages(&self) -> PageCount {
        let known = self.living.keys().filter_map(|pid| procfs::own_pages(*pid).ok());
        PageCount(known.map(PageCount::get).sum())
    }

    /// Takes in a stopped tree: its processes and their mappings.
    pub(super) fn settle(&mut self, stopped: &StoppedTree, objects: &mut Objects) -> Result<()> {
        // Of areas as they were while it ran; those processes are looked at anew.
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
        Ok(())
    }

    fn settle_process(&mut self, stopped: &StoppedProcess, objects: &mut Objects) -> Result<()> {
        let pid = stopped.pid;
        let stat = procfs::stat(pid)?;
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
            objects.look(pid, &process.space.areas);
            process.stat = stat;
        } else {
            let space = self.living.get(&pid).map_or_else(|| self.next_space(), |process| process.space.id);
            let looked = Process::look(pid, stat, space, objects, &self.attached);
            let process = looked.map_err(EngineError::or_refusal)?;
            let is_borrowed = process.is_borrowed;
            self.living.insert(pid, process);
            if is_borrowed {
                return Err(EngineError::Refused(sharing::obstacles(&self.view())));
            }
        }
        self.refuse_areas(pid, Moment::Stopped, objects)
    }

    fn refuse_areas(&mut self, pid: Pid, moment: Moment, objects: &mut Objects) -> Result<()> {
        let Some(process) = self.living.get_mut(&pid) else { return Ok(()) };
        let mut found = memory::obstacles(pid, &process.space.areas);
        found.extend(objects.take_obstacles(moment));
        // One that is refused is looked at again, whether it changes or not.
        process.space.is_settled = found.is_empty();
        if found.is_empty() { Ok(()) } else { Err(EngineError::Refused(found)) }
    }

    /// Reads the flags of areas that were new in the pause, whose reading takes the kernel too long to do it there, and
    /// refuses what only they tell.
    pub(super) fn complete_areas(&mut self, objects: &mut Objects) -> Result<()> {
        let mut completed = Vec::new();
        let mut unknown = Vec::new();
        for (pid, Process { space, .. }) in &mut self.living {
            let is_due = space.flags.has_old;
            match space.flags.complete(*pid, &mut space.areas) {
                // It has ended since; what was taken of it stands.
                Err(error) if error.says_gone() => {}
                outcome => completed.extend(outcome?.then_some(*pid)),
            }
            if is_due {
                let found = space.infer_flags(*pid);
                // They are read again after the next pause.
                space.is_settled &= found.is_empty();
                unknown.extend(found);
                objects.mark_writable(&space.areas);
            }
        }
        if !unknown.is_empty() {
            for pid in completed {
                self.living.get_mut(&pid).into_iter().for_each(|process| process.space.is_settled = false);
            }
            return Err(EngineError::Refused(unknown));
        }
        // All of them, so that none is taken for accepted.
        let outcomes: Vec<_> =
            completed.into_iter().map(|pid| self.refuse_areas(pid, Moment::Running, objects)).collect();
        outcomes.into_iter().collect()
    }

    /// The stopped tree lists living processes and zombies apart; creation order needs parents first.
    fn parents_first(&self, mut pids: Vec<Pid>) -> Result<Vec<Pid>> {
        let mut sorted = vec![self.root];
        pids.retain(|pid| *pid != self.root);
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

    /// Reads what stays the same in all processes. For a tree that was scanned.
    pub(super) fn read_vdso(&mut self) -> Result<()> {
        let Some(Process { space, .. }) = self.living.get(&self.root) else { return Ok(()) };
        if let Some(area) = space.areas.iter().find(|area| area.name == "[vdso]") {
            let code = space.memory.read_vec(area.range.start, area.range.len())?;
            self.vdso_checksum = image::Checksum::of(&code).get();
        }
        Ok(())
    }

    /// Adds the records of the tree, its processes and their areas.
    pub(super) fn write(&self, objects: &Objects, records: &mut RecordSet) {
        let pids = self.order.iter().map(|pid| pid.get()).collect();
        TreeMessage { pids, vdso_checksum: self.vdso_checksum }.put(records, Owner::Tree);
        for pid in &self.order {
            if let Some(process) = self.living.get(pid) {
                process.message().put(records, Owner::Process(*pid));
                let areas = process.space.areas.iter().filter(|area| !area.is_kernel());
                let areas = areas.map(|area| objects.area_record(area)).collect();
                let guards = process.space.guards.iter();
                let guards = guards.flat_map(|guard| [guard.start.get(), guard.end.get()]).collect();
                AreasMessage { areas, guards }.put(records, Owner::Process(*pid));
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
