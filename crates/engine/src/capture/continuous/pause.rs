//! What is done while the tree stands.
//!
//! Owns: the order inside the pause.
//! Invariants: no page is copied that has not changed since it was copied last; remote calls are over before a page
//! that they use is copied.
//! Does not: stop the tree, or let it go on.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use model::{PageCount, Pid};
use tracee::StoppedTree;
use tracee::procfs::Stat;
use track::{Attach, Moment, TrackerKind};

use super::super::before::{Before, ProcessBefore};
use super::super::copier::{Copier, PageSink};
use super::super::{CheckpointOptions, descriptors, pages, threads};
use super::phases::Laps;
use super::tracked::{EVERYTHING, Tracked};
use super::watched::Watched;
use super::{Continuous, Counts, Phases, Tuning};
use crate::error::{EngineError, Result};
use crate::records::object_space;

/// How much one stop has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    /// Everything: the checkpoint is complete.
    Whole,
    /// Some of the pages. The others did not fit into the pause budget.
    Part,
}

impl Continuous {
    /// Takes all of a tree that stands. One that goes on without a checkpoint may close what it likes.
    pub(super) fn inside(
        &mut self,
        sink: &dyn PageSink,
        tree: &mut StoppedTree,
        options: &CheckpointOptions,
        counts: &mut Counts,
        phases: &mut Phases,
    ) -> Result<Extent> {
        let outcome = self.take_all(sink, tree, options, counts, phases);
        if !matches!(outcome, Ok(Extent::Whole))
            && !options.kill
            && let Some(before) = &mut self.before
        {
            before.descriptors.let_go();
        }
        outcome
    }

    fn take_all(
        &mut self,
        sink: &dyn PageSink,
        tree: &mut StoppedTree,
        options: &CheckpointOptions,
        counts: &mut Counts,
        phases: &mut Phases,
    ) -> Result<Extent> {
        let mut laps = Laps::from(phases.began + phases.stop);
        let before = self.before.as_mut().expect("it was looked at first");
        before.refresh_processes(tree)?;
        self.is_orderly = false;
        leave_ended(&mut self.tracked, before, sink);
        let fresh = cover(self.kind, &self.tuning, &mut self.tracked, before, Prepared::new(), tree, sink)?;
        // A scan that is begun and not ended loses nothing.
        self.crew.begin(before, &mut self.tracked);
        self.is_orderly = true;
        phases.areas = laps.lap();
        before.refresh_descriptors(options)?;
        if counts.rounds > 0 && before.descriptors.bypass_cache() {
            return Err(EngineError::Unsteady);
        }
        phases.tables = laps.lap();
        // Pages of new mappings are found and protected while the subject runs.
        if self.defers_fresh(fresh, counts) {
            return Ok(Extent::Part);
        }
        let before = self.before.as_mut().expect("it was looked at first");
        // Remote calls use memory of the subject; what was there before is there again afterwards. Where a handler lifts
        // protection, they come after the scan: what a thread needs to go on (its stack, its restartable sequence) is
        // open again then. Else it would sleep once more, which looks as if it had begun another wait (`tracee::waits`).
        let scan_first = self.kind.properties().sees_before;
        phases.memory_first = scan_first;
        if !scan_first {
            beside_memory(before, tree, &mut self.watched, phases, &mut laps)?;
        }
        let extent = self.copy_pages(sink, counts, phases, &mut laps)?;
        if extent == Extent::Part {
            return Ok(extent);
        }
        let before = self.before.as_mut().expect("it was looked at first");
        copy_objects(before, sink)?;
        phases.objects = laps.lap();
        if scan_first {
            beside_memory(before, tree, &mut self.watched, phases, &mut laps)?;
        }
        Ok(extent)
    }

    /// Finds what has changed since the last scan, and copies that and what was deferred, as long as the budget lasts.
    fn copy_pages(
        &mut self,
        sink: &dyn PageSink,
        counts: &mut Counts,
        phases: &mut Phases,
        laps: &mut Laps,
    ) -> Result<Extent> {
        let before = self.before.as_mut().expect("it was looked at first");
        self.is_orderly = false;
        let mut dirtied = PageCount(0);
        for (pid, tracked) in &mut self.tracked {
            let Some(process) = before.processes.get(pid) else { continue };
            let found = tracked.find(process, Moment::Stopped, &mut self.dirty, sink)?;
            dirtied += found.pages;
            phases.scan += found.scan;
            phases.scanned += tracked.watched();
        }
        self.pace.scanned(phases.began, dirtied);
        let until = if counts.throttle.is_bound() { self.copy_end(phases.began) } else { None };
        let before = self.before.as_mut().expect("it was looked at first");
        for (pid, tracked) in &mut self.tracked {
            let Some(process) = before.processes.get_mut(pid) else { continue };
            counts.residual += tracked.copy_deferred(process, sink, until)?;
            if tracked.deferred() == PageCount(0) {
                tracked.copy_unread(process, sink)?;
            }
            tracked.guards().as_slice().clone_into(&mut process.guards);
        }
        phases.copy = laps.lap().saturating_sub(phases.scan);
        self.is_orderly = true;
        self.budget.note_copied(counts.residual, phases.copy);
        Ok(if self.deferred() == PageCount(0) { Extent::Whole } else { Extent::Part })
    }
}

/// What is taken of a standing tree beside its memory.
fn beside_memory(
    before: &mut Before,
    tree: &mut StoppedTree,
    watched: &mut Watched,
    phases: &mut Phases,
    laps: &mut Laps,
) -> Result<()> {
    descriptors::inside(before)?;
    phases.descriptors = laps.lap();
    watched.bind(before);
    descriptors::end_inside(before);
    phases.files = laps.lap();
    threads::inside(before, tree)?;
    phases.threads = laps.lap();
    Ok(())
}

/// Takes processes that have ended out of the checkpoint. Before new ones are covered: these may have been given the
/// same space.
pub(super) fn leave_ended(tracked: &mut HashMap<Pid, Tracked>, before: &Before, sink: &dyn PageSink) {
    tracked.retain(|pid, tracked| {
        let is_there = before.processes.contains_key(pid);
        if !is_there {
            tracked.leave(sink);
        }
        is_there
    });
}

/// Trackers that were prepared before their processes were stopped for them, each with what it was prepared for.
pub(super) type Prepared = HashMap<Pid, (Stat, Attach)>;

/// Prepares trackers of processes that have none. What is opened of one that has its parent's memory yet, stays with
/// that: it finds nothing, and nothing tells.
pub(super) fn prepare(
    kind: &'static dyn TrackerKind,
    tracked: &HashMap<Pid, Tracked>,
    before: &Before,
) -> Prepared {
    let new = before.processes.iter();
    let new = new.filter(|(pid, process)| !tracked.contains_key(pid) && !process.is_borrowed);
    // One that ends meanwhile is missed by nobody.
    let prepare = |(pid, process): (&Pid, &ProcessBefore)| {
        Some((*pid, (process.stat.clone(), kind.prepare(*pid, &process.areas).ok()?)))
    };
    new.filter_map(prepare).collect()
}

/// Attaches trackers to processes that have none, and tells all of them which areas there are. Returns the pages of
/// areas that no scan has seen.
pub(super) fn cover(
    kind: &'static dyn TrackerKind,
    tuning: &Tuning,
    tracked: &mut HashMap<Pid, Tracked>,
    before: &mut Before,
    mut prepared: Prepared,
    tree: &mut StoppedTree,
    sink: &dyn PageSink,
) -> Result<PageCount> {
    let mut fresh = PageCount(0);
    leave_replaced(tracked, before, sink);
    for stopped in &mut tree.processes {
        let Some(process) = before.processes.get_mut(&stopped.pid) else { continue };
        let known = match tracked.entry(stopped.pid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let leader = stopped.threads.first_mut().expect("a stopped process has threads");
                let attach = match prepared.remove(&stopped.pid) {
                    Some((stat, attach)) if stat.may_be_program_of(&process.stat) => attach,
                    _ => kind.prepare(stopped.pid, &[])?,
                };
                let attached = Tracked::attach(attach, process, leader, sink)?;
                before.attached.insert(stopped.pid);
                new.insert(attached.grouped(tuning.granularity))
            }
        };
        if !process.is_covered {
            fresh += known.cover(process, sink)?;
            process.is_covered = true;
        }
    }
    Ok(fresh)
}

/// Takes the pages of programs that exec has replaced out of the checkpoint: the new program may have another space, and
/// an image with pages of a space that no process has cannot be restored. Before any new program is attached, which may
/// have been given the space of an old one.
fn leave_replaced(tracked: &mut HashMap<Pid, Tracked>, before: &Before, sink: &dyn PageSink) {
    tracked.retain(|pid, tracked| {
        let is_current = before.processes.get(pid).is_none_or(|process| tracked.is_of(process));
        if !is_current {
            tracked.leave(sink);
        }
        is_current
    });
}

/// Copies shared objects whole: other processes and descriptors change them too, past any tracker of one address
/// space.
fn copy_objects(before: &mut Before, sink: &dyn PageSink) -> Result<()> {
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
