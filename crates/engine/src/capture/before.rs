//! What is known of a subject before it is stopped, brought up to date once it stands.
//!
//! Owns: the list of processes with their handles, areas and objects; the check for what changed meanwhile.
//! Invariants: after `refresh` it describes the stopped tree exactly.
//! Does not: read pages or thread state.

use std::collections::{HashMap, HashSet};

use image::{RecordSet, SpaceId};
use model::{PageCount, Pid};
use resource::Obstacle;
use resource::memory;
use resource::state;
use tracee::procfs::{self, Area, KeptFiles, Stat};
use tracee::{StoppedTree, tree};
use track::Moment;

use super::descriptors::{Descriptors, Hold, areas_of};
use super::objects::Objects;
use super::options::CheckpointOptions;
use super::process::{ProcessBefore, permission, relations};
use crate::error::{EngineError, Result};
use crate::records::{AreasMessage, EngineRecord, ProcessMessage, of_process};
use crate::{obstacles, sharing};

/// A subject, as far as it can be known from outside.
pub(super) struct Before {
    pub(super) root: Pid,
    /// Every process, zombies included, parents first.
    pub(super) order: Vec<Pid>,
    pub(super) processes: HashMap<Pid, ProcessBefore>,
    pub(super) zombies: HashMap<Pid, Stat>,
    pub(super) objects: Objects,
    pub(super) descriptors: Descriptors,
    /// Files of threads, held open.
    pub(super) files: KeptFiles,
    pub(super) vdso_checksum: u32,
    /// Looked at again and again: areas that change are followed, and not looked at closely inside the pause.
    pub(super) is_continuous: bool,
    pub(super) doubt: Doubt,
    /// Processes that a tracker was attached to.
    pub(super) attached: HashSet<Pid>,
}

/// What stood in the way when the subject was looked at while it ran, and has to be looked at again once it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    Nothing,
    Descriptors,
    Everything,
}

/// Looks at what is in the way of a running subject: most of it is held for less time than a look takes.
const LOOKS_MAX: usize = 3;

impl Before {
    /// Looks at a tree and refuses it when anything stands in the way.
    pub(super) fn look(root: Pid, options: &CheckpointOptions, moment: Moment) -> Result<Self> {
        let order = tree::descendants(root).map_err(|error| no_process(root, error))?;
        let mut before = Self {
            root,
            order,
            processes: HashMap::new(),
            zombies: HashMap::new(),
            objects: Objects::default(),
            descriptors: Descriptors::default(),
            files: KeptFiles::default(),
            vdso_checksum: 0,
            is_continuous: false,
            doubt: Doubt::Nothing,
            attached: HashSet::new(),
        };
        before.look_at_processes(HashMap::new())?;
        if !before.processes.contains_key(&root) {
            return Err(EngineError::NoProcess(root));
        }
        before.vdso_checksum = before.checksum_vdso(root)?;
        before.descriptors.look(&before.processes, &before.order, Hold::All)?;
        let rare = sharing::rare_obstacles(&before.view());
        before.accept(options, moment, rare)?;
        if moment == Moment::Running {
            // What the subject closes from now on has to be closed.
            before.descriptors.let_go();
        }
        before.open_files();
        Ok(before)
    }

    /// Opens what will be read of each thread. One that has ended meanwhile is not needed.
    fn open_files(&mut self) {
        for pid in self.processes.keys() {
            for tid in procfs::threads(*pid).unwrap_or_default() {
                let _ = state::open_files(&mut self.files, *pid, tid);
            }
        }
    }

    fn view(&self) -> Vec<(Pid, &[Area])> {
        self.order
            .iter()
            .filter_map(|pid| self.processes.get(pid).map(|process| (*pid, process.areas.as_slice())))
            .collect()
    }

    /// Looks at every process, but closely only at those that are not among the `known`.
    fn look_at_processes(&mut self, mut known: HashMap<Pid, ProcessBefore>) -> Result<()> {
        let mut space = known.values().map(|process| process.space.0 + 1).max().unwrap_or(0);
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
            if let Some(process) = known.remove(&pid).filter(|process| process.is_of(&stat)) {
                self.processes.insert(pid, ProcessBefore { stat, ..process });
                continue;
            }
            match ProcessBefore::look(pid, stat, SpaceId(space), &mut self.objects, &self.attached) {
                Ok(process) => {
                    self.processes.insert(pid, process);
                    space += 1;
                }
                Err(error) if error.says_gone() && pid != self.root => {}
                // It has hardly begun, and is looked at in the pause.
                Err(error) if error.lacks_code().is_some() && pid != self.root && self.is_continuous => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks again at the processes of a running tree; closely only at those that are new.
    pub(super) fn look_at_tree_again(&mut self) -> Result<()> {
        self.order = tree::descendants(self.root).map_err(|error| no_process(self.root, error))?;
        self.zombies.clear();
        let known = std::mem::take(&mut self.processes);
        self.look_at_processes(known)?;
        if self.processes.contains_key(&self.root) { Ok(()) } else { Err(EngineError::NoProcess(self.root)) }
    }

    /// Looks at the descriptors of a running tree anew. What stands in the way again and again does not refuse yet: the
    /// pause tells whether it is still there.
    pub(super) fn look_at_descriptors_again(&mut self, options: &CheckpointOptions) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            self.descriptors.look(&self.processes, &self.order, Hold::Nothing)?;
            match self.accept(options, Moment::Running, Vec::new()) {
                Err(error) if matches!(error, EngineError::Refused(_)) || error.says_gone() => {}
                outcome => return outcome,
            }
        }
        Ok(())
    }

    /// Pages that its processes share with no file, about.
    pub(super) fn own_pages(&self) -> PageCount {
        let known = self.processes.keys().filter_map(|pid| procfs::own_pages(*pid).ok());
        PageCount(known.map(PageCount::get).sum())
    }

    /// Refuses when anything stands in the way, or has been `found` to; else prepares what the pause needs.
    fn accept(
        &mut self,
        options: &CheckpointOptions,
        moment: Moment,
        mut found: Vec<Obstacle>,
    ) -> Result<()> {
        found.extend(self.objects.take_obstacles(moment));
        found.extend(obstacles::of_tree(&self.view(), &self.order));
        self.doubt = if found.is_empty() { Doubt::Descriptors } else { Doubt::Everything };
        found.extend(self.prepare_descriptors(options)?);
        if moment == Moment::Running {
            // A single checkpoint has no later one, and the image that it begins may have changed the directory.
            self.descriptors.list_directories(options, !self.is_continuous);
        }
        if !found.is_empty() {
            return Err(EngineError::Refused(found));
        }
        self.doubt = Doubt::Nothing;
        Ok(())
    }

    fn prepare_descriptors(&mut self, options: &CheckpointOptions) -> Result<Vec<Obstacle>> {
        self.descriptors.prepare(&self.order, areas_of(&self.processes, &self.order), options)
    }

    /// Forgets objects that nothing maps any more, and tells their numbers.
    pub(super) fn forget_objects(&mut self) -> Vec<u64> {
        let areas = self.processes.values().flat_map(|process| &process.areas);
        self.objects.keep_those_of(areas)
    }

    /// Brings the descriptors up to date with a tree that stands and whose processes are known.
    pub(super) fn refresh_descriptors(&mut self, options: &CheckpointOptions) -> Result<()> {
        let changed = self.descriptors.refresh(&self.processes, &self.order)?;
        if self.doubt == Doubt::Everything {
            return self.accept(options, Moment::Stopped, Vec::new());
        }
        if changed || self.doubt == Doubt::Descriptors {
            let found = self.prepare_descriptors(options)?;
            if !found.is_empty() {
                self.doubt = Doubt::Descriptors;
                return Err(EngineError::Refused(found));
            }
            self.doubt = Doubt::Nothing;
        }
        Ok(())
    }

    /// Brings processes and their areas up to date with a tree that stands.
    pub(super) fn refresh_processes(&mut self, stopped: &StoppedTree) -> Result<()> {
        // Of areas as they were while it ran; those processes are looked at anew.
        self.objects.forget_gone();
        let mut order: Vec<Pid> = stopped.processes.iter().map(|process| process.pid).collect();
        order.extend(&stopped.zombies);
        self.order = self.parents_first(order)?;
        self.zombies.clear();
        for pid in &stopped.zombies {
            self.processes.remove(pid);
            self.zombies.insert(*pid, procfs::stat(*pid)?);
        }
        self.processes.retain(|pid, _| stopped.process(*pid).is_some());
        for process in &stopped.processes {
            self.refresh_process(process)?;
        }
        Ok(())
    }

    fn refresh_process(&mut self, stopped: &tracee::StoppedProcess) -> Result<()> {
        let pid = stopped.pid;
        let stat = procfs::stat(pid)?;
        let next = self.processes.values().map(|process| process.space.0 + 1).max().unwrap_or(0);
        let mut known = self.processes.get_mut(&pid).filter(|process| process.is_of(&stat));
        let has_changed = known.as_mut().map_or(Ok(true), |process| {
            let has_changed = process.layout_watch.changed()?;
            Ok::<_, EngineError>(has_changed || !process.is_settled)
        })?;
        let is_continuous = self.is_continuous;
        if has_changed
            && let Some(process) = known.filter(|_| is_continuous)
            && process.follow_areas(pid)?
        {
            self.objects.look(pid, &process.areas);
            process.stat = stat;
            self.refuse_areas(pid, Moment::Stopped)?;
        } else if has_changed {
            let space = self.processes.get(&pid).map_or(SpaceId(next), |process| process.space);
            let looked = ProcessBefore::look(pid, stat, space, &mut self.objects, &self.attached);
            let process = looked.map_err(|error| match error.lacks_code() {
                Some(pid) => EngineError::Refused(vec![obstacles::of_code(pid)]),
                None => error,
            })?;
            let is_borrowed = process.is_borrowed;
            self.processes.insert(pid, process);
            if is_borrowed {
                return Err(EngineError::Refused(sharing::obstacles(&self.view())));
            }
            self.refuse_areas(pid, Moment::Stopped)?;
        } else if let Some(process) = self.processes.get_mut(&pid) {
            process.stat = stat;
        }
        Ok(())
    }

    /// Has a process looked at again in the next pause, whether it changes or not.
    fn unsettle(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.is_settled = false;
        }
    }

    fn refuse_areas(&mut self, pid: Pid, moment: Moment) -> Result<()> {
        let Some(process) = self.processes.get_mut(&pid) else { return Ok(()) };
        let mut found = memory::obstacles(pid, &process.areas);
        found.extend(self.objects.take_obstacles(moment));
        // One that is refused is looked at again, whether it changes or not.
        process.is_settled = found.is_empty();
        if found.is_empty() { Ok(()) } else { Err(EngineError::Refused(found)) }
    }

    /// Reads the flags of areas that were new in the pause, whose reading takes the kernel too long to do it there, and
    /// refuses what only they tell.
    pub(super) fn complete_areas(&mut self) -> Result<()> {
        let mut completed = Vec::new();
        let mut unknown = Vec::new();
        for (pid, process) in &mut self.processes {
            let is_due = process.flags.has_old();
            match process.flags.complete(*pid, &mut process.areas) {
                // It has ended since; what was taken of it stands.
                Err(error) if error.says_gone() => {}
                outcome => {
                    if outcome? {
                        completed.push(*pid);
                    }
                }
            }
            if is_due {
                let found = process.infer_flags(*pid);
                // They are read again after the next pause.
                process.is_settled &= found.is_empty();
                unknown.extend(found);
                self.objects.mark_writable(&process.areas);
            }
        }
        if !unknown.is_empty() {
            completed.iter().for_each(|pid| self.unsettle(*pid));
            return Err(EngineError::Refused(unknown));
        }
        // All of them, so that none is taken for accepted.
        let outcomes: Vec<_> =
            completed.into_iter().map(|pid| self.refuse_areas(pid, Moment::Running)).collect();
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

    fn checksum_vdso(&self, pid: Pid) -> Result<u32> {
        let process = &self.processes[&pid];
        match process.areas.iter().find(|area| area.name == "[vdso]") {
            Some(area) => {
                let code = process.memory.read_vec(area.range.start, area.range.len())?;
                Ok(image::Checksum::of(&code).get())
            }
            None => Ok(0),
        }
    }

    /// Adds the records of processes and their areas.
    pub(super) fn put_processes(&self, records: &mut RecordSet) {
        for pid in &self.order {
            if let Some(process) = self.processes.get(pid) {
                process.message().put(records, of_process(*pid));
                let areas = process.areas.iter().filter(|area| !area.is_kernel());
                let areas = areas.map(|area| self.objects.area_record(area)).collect();
                let guards =
                    process.guards.iter().flat_map(|guard| [guard.start.get(), guard.end.get()]).collect();
                AreasMessage { areas, guards }.put(records, of_process(*pid));
            } else if let Some(stat) = self.zombies.get(pid) {
                let zombie = ProcessMessage { zombie: true, exit_code: stat.exit_code, ..relations(stat) };
                zombie.put(records, of_process(*pid));
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
