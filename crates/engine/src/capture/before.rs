//! The state of a subject that is collected before the stop and updated in the stop.
//!
//! Owns: the topics (processes with their address spaces, shared objects, descriptors, threads) and their
//! records; obstacles (reasons to refuse a checkpoint) that concern several topics.
//! Invariants: `survey` scans a topic while the subject runs. `settle` updates the topic while the subject is
//! stopped.
//! Does not: read pages or thread state.

use std::collections::HashSet;
use std::time::SystemTime;

use image::{RecordSet, Timings};
use model::Pid;
use resource::Obstacle;
use store::CommitMeta;
use tracee::procfs::{self, KeptFiles};
use tracee::{Roots, StoppedTree, tree};
use track::Moment;

use super::descriptors::{Descriptors, Duplicates};
use super::objects::Objects;
use super::options::CheckpointOptions;
use super::processes::Processes;
use super::retry::{Retries, SCANS, Verdict};
use super::threads::{self, Threads};
use crate::error::{EngineError, Result, permission};
use crate::{obstacles, sharing};

/// The collected state of a subject: processes, objects, descriptors and threads.
#[derive(Default)]
pub(super) struct Before {
    pub(super) processes: Processes,
    pub(super) objects: Objects,
    pub(super) descriptors: Descriptors,
    pub(super) threads: Threads,
    recheck: Recheck,
}

/// The state that must be inspected again in the stop, because the last scan of the running subject found an
/// obstacle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Recheck {
    #[default]
    Nothing,
    Descriptors,
    Everything,
}

/// The maximum number of scans for obstacles of a running subject. Most obstacles (an open file, for example)
/// exist for less time than a scan takes.
const SCANS_MAX: usize = 3;

/// Returns all obstacles to a checkpoint of the roots and their descendants.
pub fn preflight(roots: impl Into<Roots>, options: &CheckpointOptions) -> Result<Vec<Obstacle>> {
    let roots = roots.into();
    tree::descendants(&roots).map_err(|_| EngineError::NoProcess(roots.first()))?;
    match inspect(&roots, options) {
        Ok(_) => Ok(Vec::new()),
        Err(EngineError::Refused(obstacles)) => Ok(obstacles),
        Err(error) => Err(error),
    }
}

/// Inspects a subject while it runs. If that is impossible, stops the subject for the inspection and resumes
/// it afterwards.
pub(super) fn inspect(roots: &Roots, options: &CheckpointOptions) -> Result<Before> {
    if let Some(before) = inspect_running(roots, options)? {
        return Ok(before);
    }
    let _stopped = StoppedTree::stop(roots)?;
    inspect_stopped(roots, options)
}

/// Inspects a subject while it runs, and repeats the inspection after transient failures. Such a failure
/// occurs if a process calls execve(2) during the inspection, or holds, for a short time, an object that
/// cannot be saved. Returns `None` if all attempts failed in this way. The subject can then be inspected only
/// while it is stopped.
pub(super) fn inspect_running(roots: &Roots, options: &CheckpointOptions) -> Result<Option<Before>> {
    let mut retries = Retries::of(SCANS, roots);
    loop {
        match Before::inspect(roots, options, Moment::Running) {
            Ok(before) => return Ok(Some(before)),
            Err(error) => match retries.after(error) {
                Verdict::Again(wait) => std::thread::sleep(wait),
                Verdict::UsedUp(_) => return Ok(None),
                Verdict::Lasting(error) => return Err(error),
            },
        }
    }
}

pub(super) fn inspect_stopped(roots: &Roots, options: &CheckpointOptions) -> Result<Before> {
    Before::inspect(roots, options, Moment::Stopped).map_err(EngineError::or_refusal)
}

impl Before {
    /// Inspects a tree. Returns `Refused` if there is an obstacle.
    pub(super) fn inspect(roots: &Roots, options: &CheckpointOptions, moment: Moment) -> Result<Self> {
        Self::inspect_tracked(roots, options, moment, HashSet::new())
    }

    /// Like `inspect`. `tracked` contains the processes to which this program has attached a tracker.
    pub(super) fn inspect_tracked(
        roots: &Roots,
        options: &CheckpointOptions,
        moment: Moment,
        tracked: HashSet<Pid>,
    ) -> Result<Self> {
        // A shortage before this inspection is of no interest.
        let _ = procfs::shortage();
        let mut before = Self { processes: Processes::of(roots), ..Self::default() };
        before.processes.attached = tracked;
        before.descriptors.options = options.clone();
        before.processes.survey(&mut before.objects, &mut KeptFiles::default())?;
        before.processes.read_vdso()?;
        before.descriptors.survey(&before.processes, Duplicates::Keep)?;
        let rare = sharing::rare_obstacles(&before.processes.view());
        before.accept(moment, rare)?;
        if moment == Moment::Running {
            // The subject runs. An open duplicate would keep the subject's close(2) from releasing the open
            // file description.
            before.descriptors.close_duplicates();
        }
        before.threads.survey(&before.processes);
        Ok(before)
    }

    /// Inspects the descriptors of a running tree again. An obstacle that all scans find is no error yet. The
    /// pause checks whether the obstacle still exists.
    pub(super) fn survey_descriptors(&mut self) -> Result<()> {
        for _ in 0..SCANS_MAX {
            let _ = procfs::shortage();
            self.descriptors.survey(&self.processes, Duplicates::Drop)?;
            match self.accept(Moment::Running, Vec::new()) {
                Err(error) if matches!(error, EngineError::Refused(_)) || error.says_gone() => {}
                outcome => return outcome,
            }
        }
        Ok(())
    }

    /// Prepares the descriptors for the pause. Returns `Refused` if `found` contains an obstacle, or if the
    /// tree, an object or a descriptor has an obstacle.
    fn accept(&mut self, moment: Moment, mut found: Vec<Obstacle>) -> Result<()> {
        found.extend(self.objects.take_obstacles(moment));
        let of_tree = obstacles::of_tree(&self.processes.view(), &self.processes.order);
        found.extend(of_tree.map_err(|error| permission(self.processes.roots.first(), error))?);
        self.recheck = if found.is_empty() { Recheck::Descriptors } else { Recheck::Everything };
        found.extend(self.descriptors.prepare(&self.processes)?);
        if moment == Moment::Running {
            // A single checkpoint waits for the directories, because it has no later checkpoint. Its own new
            // image may have just changed a directory.
            self.descriptors.list_directories(!self.processes.is_continuous);
        }
        if !found.is_empty() {
            return Err(EngineError::Refused(found));
        }
        procfs::shortage()?;
        self.recheck = Recheck::Nothing;
        Ok(())
    }

    /// Removes the objects that no mapping refers to any more. Returns the ids of these objects.
    pub(super) fn forget_objects(&mut self) -> Vec<u64> {
        let mappings = self.processes.living.values().flat_map(|process| &process.space.mappings);
        self.objects.keep_those_of(mappings)
    }

    /// Updates the descriptors of a stopped tree. The processes must have been updated before.
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

    /// Returns all records of a capture; the pages are not records. The subject need not be stopped.
    pub(super) fn records(&mut self) -> Result<RecordSet> {
        let mut records = RecordSet::new();
        self.processes.write(&self.objects, &mut records);
        self.objects.put(&mut records);
        self.descriptors.write_files(&mut records);
        self.descriptors.write(&self.processes, &mut records)?;
        threads::write(&self.processes, &mut records)?;
        Ok(records)
    }

    /// Returns the content of the commit record, except the records.
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
