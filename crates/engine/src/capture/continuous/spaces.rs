//! Tracks the address spaces of a subject from one checkpoint to the next, and copies the changed pages. A
//! tracker finds the pages to which one process has written.
//!
//! Owns: the trackers; the pages that the trackers have found; the measured rates; the code that stops the subject for
//! slices.
//! Invariants: a stop copies only pages that have changed since their last copy.
//! Does not: stop the subject, except for slices.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use model::{AddressRange, PageCount, Pid};
use sys::clock::{Clock, Deadline, Stopwatch};
use sys::scratch::HUGE_PAGE_BYTES;
use sys::{huge_pages, pidfd};
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
use super::super::reserve::Reserve;
use super::super::watched::Watched;
use super::budget::Budget;
use super::copies::Habits;
use super::meanwhile::Space;
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
    /// The worker threads that help in a stop. The cell is empty as long as the subject is too small for
    /// workers. The cell contains `None` if workers cannot be used.
    pub(super) worker_pool: OnceCell<Option<Arc<WorkerPool>>>,
    /// The source of the time for decisions about the length of stops and slices.
    pub(super) clock: Clock,
    pub(super) habits: Habits,
    pub(super) budget: Budget,
    /// The counts of the current checkpoint. Between two checkpoints: the counts of the last checkpoint.
    pub(super) counts: Counts,
    /// Whether a descriptor had O_DIRECT at the last inspection.
    pub(super) bypasses_cache: bool,
    /// Whether every page that was reported dirty is in the epoch or deferred, and no update of a tracker is
    /// incomplete.
    pub(super) is_orderly: bool,
}

/// The address spaces during one stop of a checkpoint.
pub(super) struct Writing<'a> {
    pub(super) spaces: &'a mut Spaces,
    pub(super) watched: &'a mut Watched,
    pub(super) sink: &'a Reserve<'a>,
}

/// The result of a stop in which some pages did not fit into the pause budget. These pages are not yet
/// copied.
pub(super) struct PagesLeft;

impl Memory for Writing<'_> {
    type Part = PagesLeft;

    /// Updates the trackers. If the new mappings have too many pages for the pause budget, ends the stop. The
    /// pages of the new mappings are then found and protected while the subject runs.
    fn settle(&mut self, before: &mut Before, tree: &mut StoppedTree) -> Result<Option<PagesLeft>> {
        let fresh = self.spaces.settle(before, Prepared::new(), tree, self.sink)?;
        if self.spaces.defers_fresh(fresh) {
            return Ok(Some(PagesLeft));
        }
        // Workers begin the scan here. If the stop ends before the result is used, the next scan reports this
        // result.
        self.spaces.begin_ahead(before);
        Ok(None)
    }

    fn check(&self, before: &Before) -> Result<()> {
        let was_precopied = self.spaces.counts.has_scanned && before.descriptors.bypass_cache();
        if was_precopied { Err(EngineError::Unsteady) } else { Ok(()) }
    }

    fn bind(&mut self, before: &Before) {
        self.watched.bind(before);
    }

    /// Finds the pages that have changed since the last scan. Copies these pages and the deferred pages until
    /// the pause budget is used up.
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
        spaces.note_scan(phases.began, dirtied);
        let copying = Stopwatch::start();
        let until = if spaces.counts.throttle.is_bound() { spaces.copy_end(phases.began) } else { None };
        for (pid, tracked) in &mut spaces.tracked {
            let Some(process) = before.processes.living.get_mut(pid) else { continue };
            if spaces.counts.residual == PageCount(0) || !until.is_some_and(Deadline::has_passed) {
                let workers = spaces.worker_pool.get().and_then(Option::as_deref);
                spaces.counts.residual +=
                    tracked.copy_deferred(process, Moment::Stopped, sink, until, workers)?;
            }
            if tracked.deferred.pages == PageCount(0) {
                tracked.copy_unread(process, sink)?;
            }
            tracked.guards.as_slice().clone_into(&mut process.space.guards);
        }
        spaces.budget.note_copied(spaces.counts.residual, copying.elapsed());
        spaces.is_orderly = true;
        Ok((spaces.deferred(before) > PageCount(0)).then_some(PagesLeft))
    }

    /// Copies shared objects completely. Another process can change a shared object, also through a
    /// descriptor. The tracker of one address space does not find these changes.
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
            // A part of the object that is a hole now may have had pages at the previous checkpoint.
            // Therefore all old pages are removed first.
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
            habits: Habits::default(),
            counts: Counts::default(),
            bypasses_cache: false,
            is_orderly: false,
        }
    }

    /// Ends a checkpoint: decides how the next one treats pages that are written often. Returns the work until then, if huge
    /// pages are worth their cost. Must not be called inside the pause.
    pub(super) fn learn(&mut self, before: &Before, are_worth_it: bool) -> Vec<Space> {
        self.habits.pace.epoch_ended();
        let are_always = are_worth_it && huge_pages::are_always_enabled();
        let mut spaces = Vec::new();
        for (pid, tracked) in &mut self.tracked {
            let mut loose = tracked.learn();
            let Some(process) = before.processes.living.get(pid).filter(|_| are_worth_it) else { continue };
            let has_huge_pages = |range: AddressRange| process.space.has_huge_pages(range, are_always);
            let looks = tracked.looks(has_huge_pages, &loose);
            loose.retain(|part| part.len().get() == HUGE_PAGE_BYTES && has_huge_pages(*part));
            // The pid can already belong to another process. A request changes nothing there that it would notice.
            if (looks.is_some() || !loose.is_empty())
                && let Ok(process) = pidfd::open(*pid)
            {
                spaces.push(Space { process, loose, looks });
            }
        }
        spaces
    }

    /// Prepares trackers for the running processes that have no tracker. Skips a process that still uses the
    /// memory of its parent (between vfork and exec). The handles of its tracker would refer to the memory of
    /// the parent. After the exec, this tracker would find no pages and report no error.
    pub(super) fn prepare(&self, before: &Before) -> Prepared {
        let new = before.processes.living.iter();
        let new = new.filter(|(pid, process)| !self.tracked.contains_key(pid) && !process.is_borrowed);
        // `prepare` fails if the process has ended, and an ended process needs no tracker.
        let prepare = |(pid, process): (&Pid, &Process)| {
            Some((*pid, (process.stat.clone(), self.kind.prepare(*pid, &process.space.mappings).ok()?)))
        };
        new.filter_map(prepare).collect()
    }

    /// Updates the trackers with the processes and mappings of a stopped tree. Removes the trackers of ended
    /// processes, and attaches trackers to processes that have none. Returns the number of pages in mappings
    /// that no scan has seen.
    pub(super) fn settle(
        &mut self,
        before: &mut Before,
        mut prepared: Prepared,
        tree: &mut StoppedTree,
        sink: &dyn PageSink,
    ) -> Result<PageCount> {
        self.is_orderly = false;
        // Removes the pages of ended processes, and of programs that exec has replaced. If an image has pages
        // of an address space without a process, the image cannot be restored. This removal comes before new
        // processes are covered, because a new process may have the space id of an ended process.
        self.tracked.retain(|pid, tracked| {
            let is_current = before.processes.living.get(pid).is_some_and(|now| tracked.is_of(now));
            if !is_current {
                // If the log has failed, `remove_pages` fails, too. The commit of the epoch reports the
                // failure.
                let _ = tracked.remove_pages(sink);
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

/// Trackers that were prepared before their processes were stopped. Each entry also contains the process
/// state at the time of the preparation.
pub(super) type Prepared = HashMap<Pid, (Stat, Attach)>;
