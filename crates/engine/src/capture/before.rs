//! The state of a subject that is collected before the stop, and updated in the stop.
//!
//! Owns: the topics (processes with their address spaces, shared objects, descriptors, threads), the obstacles that
//! concern several of them, and their records.
//! Invariants: each topic is scanned while the subject runs (`survey`) and updated when it is stopped (`settle`).
//! Does not: read pages or thread state.

use std::time::SystemTime;

use image::{RecordSet, Timings};
use model::Pid;
use resource::Obstacle;
use store::CommitMeta;
use tracee::{StoppedTree, tree};
use track::Moment;

use super::descriptors::{Descriptors, Hold};
use super::objects::Objects;
use super::options::CheckpointOptions;
use super::processes::Processes;
use super::retry::{Retries, SCANS, Verdict};
use super::threads::{self, Threads};
use crate::error::{EngineError, Result};
use crate::{obstacles, sharing};

/// A subject, as far as it can be known from outside.
#[derive(Default)]
pub(super) struct Before {
    pub(super) processes: Processes,
    pub(super) objects: Objects,
    pub(super) descriptors: Descriptors,
    pub(super) threads: Threads,
    recheck: Recheck,
}

/// What stood in the way when the subject was looked at while it ran, and has to be looked at again once it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Recheck {
    #[default]
    Nothing,
    Descriptors,
    Everything,
}

/// Looks at what is in the way of a running subject: most of it is held for less time than a look takes.
const LOOKS_MAX: usize = 3;

/// Lists everything that would stop a checkpoint of a process and its descendants.
pub fn preflight(root: Pid, options: &CheckpointOptions) -> Result<Vec<Obstacle>> {
    tree::descendants(root).map_err(|_| EngineError::NoProcess(root))?;
    match look_in_any_case(root, options) {
        Ok(_) => Ok(Vec::new()),
        Err(EngineError::Refused(obstacles)) => Ok(obstacles),
        Err(error) => Err(error),
    }
}

/// Looks at a subject while it runs, or in a stop of its own where it cannot be looked at otherwise.
pub(super) fn look_in_any_case(root: Pid, options: &CheckpointOptions) -> Result<Before> {
    if let Some(before) = look_while_it_runs(root, options)? {
        return Ok(before);
    }
    let _stopped = StoppedTree::stop(root)?;
    look_while_it_stands(root, options)
}

/// Looks at a subject that may replace itself by exec under the look, and may hold for a moment what cannot be saved;
/// `None` when it does so again and again, and can only be looked at once it stands.
pub(super) fn look_while_it_runs(root: Pid, options: &CheckpointOptions) -> Result<Option<Before>> {
    let mut retries = Retries::of(SCANS, root);
    loop {
        match Before::look(root, options, Moment::Running) {
            Ok(before) => return Ok(Some(before)),
            Err(error) => match retries.after(error) {
                Verdict::Again(wait) => std::thread::sleep(wait),
                Verdict::UsedUp(_) => return Ok(None),
                Verdict::Lasting(error) => return Err(error),
            },
        }
    }
}

pub(super) fn look_while_it_stands(root: Pid, options: &CheckpointOptions) -> Result<Before> {
    Before::look(root, options, Moment::Stopped).map_err(EngineError::or_refusal)
}

impl Before {
    /// Looks at a tree and refuses it when anything stands in the way.
    pub(super) fn look(root: Pid, options: &CheckpointOptions, moment: Moment) -> Result<Self> {
        let mut before = Self { processes: Processes::of(root), ..Self::default() };
        before.descriptors.options = options.clone();
        before.processes.survey(&mut before.objects)?;
        before.processes.read_vdso()?;
        before.descriptors.survey(&before.processes, Hold::All)?;
        let rare = sharing::rare_obstacles(&before.processes.view());
        before.accept(moment, rare)?;
        if moment == Moment::Running {
            // What the subject closes from now on has to be closed.
            before.descriptors.let_go();
        }
        before.threads.survey(&before.processes);
        Ok(before)
    }

    /// Looks at the descriptors of a running tree anew. What stands in the way again and again does not refuse yet: the
    /// pause tells whether it is still there.
    pub(super) fn survey_descriptors(&mut self) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            self.descriptors.survey(&self.processes, Hold::Nothing)?;
            match self.accept(Moment::Running, Vec::new()) {
                Err(error) if matches!(error, EngineError::Refused(_)) || error.says_gone() => {}
                outcome => return outcome,
            }
        }
        Ok(())
    }

    /// Refuses when anything stands in the way, or has been `found` to; else prepares what the pause needs.
    fn accept(&mut self, moment: Moment, mut found: Vec<Obstacle>) -> Result<()> {
        found.extend(self.objects.take_obstacles(moment));
        found.extend(obstacles::of_tree(&self.processes.view(), &self.processes.order));
        self.recheck = if found.is_empty() { Recheck::Descriptors } else { Recheck::Everything };
        found.extend(self.descriptors.prepare(&self.processes)?);
        if moment == Moment::Running {
            // A single checkpoint has no later one, and the image that it begins may have changed the directory.
            self.descriptors.list_directories(!self.processes.is_continuous);
        }
        if !found.is_empty() {
            return Err(EngineError::Refused(found));
        }
        self.recheck = Recheck::Nothing;
        Ok(())
    }

    /// Forgets objects that nothing maps any more, and tells their numbers.
    pub(super) fn forget_objects(&mut self) -> Vec<u64> {
        let areas = self.processes.living.values().flat_map(|process| &process.space.areas);
        self.objects.keep_those_of(areas)
    }

    /// Takes in the descriptors of a stopped tree whose processes are known.
    pub(super) fn settle_descriptors(&mut self) -> Result<()> {
        let changed = self.descriptors.settle(&self.processes)?;
        if self.recheck == Recheck::Everything {
            return self.accept(Moment::Stopped, Vec::new());
        }
        if changed || self.recheck == Recheck::Descriptors {
            let found = self.descriptors.prepare(&self.processes)?;
            if !found.is_empty() {
                self.recheck = Recheck::Descriptors;
                return Err(EngineError::Refused(found));
            }
            self.recheck = Recheck::Nothing;
        }
        Ok(())
    }

    /// All records of a capture beside pages. Nothing of it needs the subject to be stopped.
    pub(super) fn records(&mut self) -> Result<RecordSet> {
        let mut records = RecordSet::new();
        self.processes.write(&self.objects, &mut records);
        self.objects.put(&mut records);
        self.descriptors.write_files(&mut records);
        self.descriptors.write(&self.processes, &mut records)?;
        threads::write(&self.processes, &mut records)?;
        Ok(records)
    }

    /// What the commit record has beside them.
    pub(super) fn meta(&self, time: SystemTime, timings: Timings) -> CommitMeta {
        let options = &self.descriptors.options;
        CommitMeta {
            sequence: options.sequence,
            time,
            subject: options.name.clone(),
            pids: self.processes.order.clone(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            timings,
        }
    }
}
