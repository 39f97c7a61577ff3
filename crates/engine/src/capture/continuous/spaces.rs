//! The address spaces of a subject between two checkpoints: trackers and copies.
//!
//! Owns: the trackers, the pages that they have found, the measured rates, the code that stops the subject for slices.
//! Invariants: a stop copies only pages that have changed since their last copy.
//! Does not: stop the subject, except for slices.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use model::{PageCount, Pid};
use sys::clock::{Clock, Stopwatch};
use tracee::procfs::Stat;
use tracee::{Freezer, StoppedTree, WorkerPool};
use track::{Attach, DirtyPages, Moment, TrackerKind};

use super::super::address_space::Coverage;
use super::super::before::Before;
use super::super::copier::{Copier, PageSink};
use super::super::pages;
use super::super::phases::{Phase, Phases};
use super::super::pipeline::Memory;
use super::super::process::Process;
use super::super::watched::Watched;
use super::budget::{Budget, Pace};
use super::taken::Counts;
use super::tracked::{EVERYTHING, Tracked};
use super::tuning::Tuning;
use crate::error::{EngineError, Result};
use crate::records::object_space;

pub(super) struct Spaces {
    pub(super) kind: &'static dyn TrackerKind,
    pub(super) tuning: Tuning,
    pub(super) tracked: HashMap<Pid, Tracked>,
    pub(super) dirty: DirtyPages,
    pub(super) freezer: Freezer,
    /// The threads that help in a stop, once the subject has grown large enough for them.
    pub(super) worker_pool: OnceCell<Option<Arc<WorkerPool>>>,
    /// What decides how long stops and slices last reads the time from it.
    pub(super) clock: Clock,
    pub(super) pace: Pace,
    pub(super) budget: Budget,
    /// Of the checkpoint that is taken, or was last.
    pub(super) counts: Counts,
    /// At the last look, a descriptor had O_DIRECT.
    pub(super) bypasses_cache: bool,
    /// What was reported as dirty is in the epoch or deferred, and no tracker is half told of anything.
    pub(super) is_orderly: bool,
}

/// The address spaces in a stop of one checkpoint.
pub(super) struct Writing<'a> {
    pub(super) spaces: &'a mut Spaces,
    pub(super) watched: &'a mut Watched,
    pub(super) sink: &'a dyn PageSink,
}

/// Pages are left that did not fit into the pause budget.
pub(super) struct PagesLeft;

impl Memory for Writing<'_> {
    type Part = PagesLeft;

    /// Pages of new mappings that exceed the budget are found and protected while the subject runs.
    fn settle(&mut self, before: &mut Before, tree: &mut StoppedTree) -> Result<Option<PagesLeft>> {
        let fresh = self.spaces.settle(before, Prepared::new(), tree, self.sink)?;
        if self.spaces.defers_fresh(fresh) {
            return Ok(Some(PagesLeft));
        }
        // A scan that is begun and not ended loses nothing.
        self.spaces.begin_ahead(before);
        Ok(None)
    }

    fn check(&self, before: &Before) -> Result<()> {
        let was_precopied = self.spaces.counts.rounds > 0 && before.descriptors.bypass_cache();
        if was_precopied { Err(EngineError::Unsteady) } else { Ok(()) }
    }

    fn comes_first(&self) -> bool {
        self.spaces.kind.properties().sees_before
    }

    fn bind(&mut self, before: &Before) {
        self.watched.bind(before);
    }

    /// Finds what has changed since the last scan, and copies that and what was deferred, as long as the budget lasts.
    fn write(&mut self, before: &mut Before, phases: &mut Phases) -> Result<Option<PagesLeft>> {
        let Self { spaces, sink, .. } = self;
        spaces.is_orderly = false;
        let mut dirtied = PageCount(0);
        for (pid, tracked) in &mut spaces.tracked {
            let Some(process) = before.processes.living.get(pid) else { continue };
            let found = tracked.find(process, Moment::Stopped, &mut spaces.dirty, *sink)?;
            dirtied += found.pages;
            phases[Phase::Scan] += found.scan;
            phases.scanned += tracked.covered.pages();
        }
        spaces.pace.scanned(phases.began, dirtied);
        let copying = Stopwatch::start();
        let until = if spaces.counts.throttle.is_bound() { spaces.copy_end(phases.began) } else { None };
        for (pid, tracked) in &mut spaces.tracked {
            let Some(process) = before.processes.living.get_mut(pid) else { continue };
            spaces.counts.residual += tracked.copy_deferred(process, *sink, until)?;
            if tracked.deferred.pages == PageCount(0) {
                tracked.copy_unread(process, *sink)?;
            }
            tracked.guards.as_slice().clone_into(&mut process.space.guards);
        }
        spaces.budget.note_copied(spaces.counts.residual, copying.elapsed());
        spaces.is_orderly = true;
        Ok((spaces.deferred(before) > PageCount(0)).then_some(PagesLeft))
    }

    /// Copies shared objects whole: other processes and descriptors change them too, past any tracker of one address
    /// space.
    fn write_objects(&mut self, before: &mut Before) -> Result<()> {
        let sink = self.sink;
        for gone in before.forget_objects() {
            sink.discard(object_space(gone), EVERYTHING)?;
        }
        before.objects.inside()?;
        let saved: Vec<u64> = before.objects.saved().map(|(id, _)| id).collect();
        if saved.is_empty() {
            return Ok(());
        }
        for id in saved {
            // What is a hole now was none before.
            sink.discard(object_space(id), EVERYTHING)?;
        }
        let mut copier = Copier::new(sink, sink.buffer()?);
        pages::copy_objects(before, &mut copier)?;
        copier.finish()
    }
}

impl Spaces {
    pub(super) fn new(kind: &'static dyn TrackerKind, tuning: Tuning) -> Self {
        Self {
            kind,
            budget: Budget::new(tuning.max_pause),
            tuning,
            tracked: HashMap::new(),
            dirty: DirtyPages::new(),
            freezer: Freezer::default(),
            worker_pool: OnceCell::new(),
            clock: Clock::default(),
            pace: Pace::default(),
            counts: Counts::default(),
            bypasses_cache: false,
            is_orderly: false,
        }
    }

    /// Prepares trackers of processes that have none, while these run. What is opened of one that has its parent's
    /// memory yet, stays with that: it finds nothing, and nothing tells.
    pub(super) fn prepare(&self, before: &Before) -> Prepared {
        let new = before.processes.living.iter();
        let new = new.filter(|(pid, process)| !self.tracked.contains_key(pid) && !process.is_borrowed);
        // One that has ended meanwhile is not needed.
        let prepare = |(pid, process): (&Pid, &Process)| {
            Some((*pid, (process.stat.clone(), self.kind.prepare(*pid, &process.space.areas).ok()?)))
        };
        new.filter_map(prepare).collect()
    }

    /// Takes in the processes and mappings of a stopped tree: ends what has ended, attaches trackers to processes that
    /// have none, and tells all of them which areas there are. Returns the pages of areas that no scan has seen.
    pub(super) fn settle(
        &mut self,
        before: &mut Before,
        mut prepared: Prepared,
        tree: &mut StoppedTree,
        sink: &dyn PageSink,
    ) -> Result<PageCount> {
        self.is_orderly = false;
        // Before new ones are covered: these may have been given the same space.
        // Pages of processes that have ended, and of programs that exec has replaced, leave the checkpoint: an image with
        // pages of a space that no process has cannot be restored.
        self.tracked.retain(|pid, tracked| {
            let is_current = before.processes.living.get(pid).is_some_and(|now| tracked.is_of(now));
            if !is_current {
                // A log that takes no more orders has failed, and says so when the epoch is finished.
                let _ = tracked.take_back(sink);
            }
            is_current
        });
        let mut fresh = PageCount(0);
        for stopped in &mut tree.processes {
            let known_process = before.processes.living.get_mut(&stopped.pid);
            let (Some(process), Some(leader)) = (known_process, stopped.threads.first_mut()) else {
                continue;
            };
            let known = match self.tracked.entry(stopped.pid) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let attach = match prepared.remove(&stopped.pid) {
                        Some((stat, attach)) if stat.may_be_program_of(&process.stat) => attach,
                        _ => self.kind.prepare(stopped.pid, &[])?,
                    };
                    let mut attached = Tracked::attach(attach, process, leader, sink)?;
                    attached.granularity = self.tuning.granularity;
                    before.processes.attached.insert(stopped.pid);
                    new.insert(attached)
                }
            };
            if process.space.coverage != Coverage::Current {
                fresh += known.cover(process, sink)?;
                process.space.coverage = Coverage::Current;
            }
        }
        self.is_orderly = true;
        Ok(fresh)
    }
}

/// Trackers that were prepared before their processes were stopped for them, each with what it was prepared for.
pub(super) type Prepared = HashMap<Pid, (Stat, Attach)>;
