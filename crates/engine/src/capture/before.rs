//! What is known of a subject before it is stopped, brought up to date once it is stopped.
//!
//! Owns: the topics (processes with their address spaces, shared objects, descriptors, threads), and what stands in the
//! way of a checkpoint across them.
//! Invariants: each topic is scanned while the subject runs (`survey`) and taken in when it is stopped (`settle`).
//! Does not: read pages or thread state.

use model::Pid;
use resource::Obstacle;
use tracee::StoppedTree;
use track::Moment;

use super::descriptors::{Descriptors, Hold};
use super::objects::Objects;
use super::options::CheckpointOptions;
use super::processes::Processes;
use super::threads::Threads;
use crate::error::{EngineError, Result};
use crate::{obstacles, sharing};

/// A subject, as far as it can be known from outside.
pub(super) struct Before {
    pub(super) processes: Processes,
    pub(super) objects: Objects,
    pub(super) descriptors: Descriptors,
    pub(super) threads: Threads,
    doubt: Doubt,
}

/// What stood in the way when the subject was looked at while it ran, and has to be looked at again once it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doubt {
    Nothing,
    Descriptors,
    Everything,
}

/// Looks at what is in the way of a running subject: most of it is held for less time than a look takes.
const LOOKS_MAX: usize = 3;

impl Before {
    /// Looks at a tree and refuses it when anything stands in the way.
    pub(super) fn look(root: Pid, options: &CheckpointOptions, moment: Moment) -> Result<Self> {
        let mut before = Self {
            processes: Processes::of(root),
            objects: Objects::default(),
            descriptors: Descriptors::default(),
            threads: Threads::default(),
            doubt: Doubt::Nothing,
        };
        before.survey()?;
        before.processes.read_vdso()?;
        before.descriptors.survey(&before.processes, Hold::All)?;
        let rare = sharing::rare_obstacles(&before.processes.view());
        before.accept(options, moment, rare)?;
        if moment == Moment::Running {
            // What the subject closes from now on has to be closed.
            before.descriptors.let_go();
        }
        before.threads.survey(&before.processes);
        Ok(before)
    }

    /// Scans the processes of a running tree: only the new ones closely.
    pub(super) fn survey(&mut self) -> Result<()> {
        self.processes.survey(&mut self.objects)
    }

    /// Takes in the processes of a stopped tree, and their mappings.
    pub(super) fn settle(&mut self, stopped: &StoppedTree) -> Result<()> {
        self.processes.settle(stopped, &mut self.objects)
    }

    /// Looks at the descriptors of a running tree anew. What stands in the way again and again does not refuse yet: the
    /// pause tells whether it is still there.
    pub(super) fn survey_descriptors(&mut self, options: &CheckpointOptions) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            self.descriptors.survey(&self.processes, Hold::Nothing)?;
            match self.accept(options, Moment::Running, Vec::new()) {
                Err(error) if matches!(error, EngineError::Refused(_)) || error.says_gone() => {}
                outcome => return outcome,
            }
        }
        Ok(())
    }

    /// Refuses when anything stands in the way, or has been `found` to; else prepares what the pause needs.
    fn accept(
        &mut self,
        options: &CheckpointOptions,
        moment: Moment,
        mut found: Vec<Obstacle>,
    ) -> Result<()> {
        found.extend(self.objects.take_obstacles(moment));
        found.extend(obstacles::of_tree(&self.processes.view(), &self.processes.order));
        self.doubt = if found.is_empty() { Doubt::Descriptors } else { Doubt::Everything };
        found.extend(self.prepare_descriptors(options)?);
        if moment == Moment::Running {
            // A single checkpoint has no later one, and the image that it begins may have changed the directory.
            self.descriptors.list_directories(options, !self.processes.is_continuous);
        }
        if !found.is_empty() {
            return Err(EngineError::Refused(found));
        }
        self.doubt = Doubt::Nothing;
        Ok(())
    }

    fn prepare_descriptors(&mut self, options: &CheckpointOptions) -> Result<Vec<Obstacle>> {
        self.descriptors.prepare(&self.processes, options)
    }

    /// Reads the flags of mappings that were new in the pause, once it is over.
    pub(super) fn complete_areas(&mut self) -> Result<()> {
        self.processes.complete_areas(&mut self.objects)
    }

    /// Forgets objects that nothing maps any more, and tells their numbers.
    pub(super) fn forget_objects(&mut self) -> Vec<u64> {
        let areas = self.processes.living.values().flat_map(|process| &process.space.areas);
        self.objects.keep_those_of(areas)
    }

    /// Takes in the descriptors of a stopped tree whose processes are known.
    pub(super) fn settle_descriptors(&mut self, options: &CheckpointOptions) -> Result<()> {
        let changed = self.descriptors.settle(&self.processes)?;
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
}
