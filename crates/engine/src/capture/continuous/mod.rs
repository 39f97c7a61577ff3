//! Continuous checkpointing: one checkpoint after the other of a subject that hardly notices.
//!
//! Owns: what is kept between two checkpoints (areas, trackers, buffers), pre-copy, the order of an epoch.
//! Invariants: a checkpoint in the log holds every page as it was in the pause, whether it was copied in it, before
//! it, or epochs ago; after any failure the next checkpoint starts from nothing; inside the pause no page is copied
//! that has not changed since it was copied last.
//! Does not: decide when the next checkpoint is due, or write.

mod tracked;

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use image::Timings;
use model::{AddressRange, PageCount, Pid, ProcessKey};
use store::{Epoch, LogWriter, Ticket};
use tracee::StoppedTree;
use track::{DirtyPages, Moment, TrackerKind};

use self::tracked::{EVERYTHING, Tracked};
use super::before::Before;
use super::copier::Copier;
use super::{CheckpointOptions, descriptors, look_while_it_runs, look_while_it_stands, meta, pages, threads};
use crate::error::{EngineError, Result};
use crate::records::object_space;

/// Rounds of pre-copy at most; each takes about as long as the copies of the round before, in which the subject
/// dirties pages again.
const ROUNDS_MAX: usize = 3;
/// A residual that is small enough: some 30 microseconds of copying.
const RESIDUAL_GOAL: PageCount = PageCount(32);

/// How long a subject stands still for one buffer of a store that does not keep up: many times what a disk takes that
/// works, and short enough for those who wait for the subject.
const STANDING_WAIT_MAX: Duration = Duration::from_millis(250);

/// What continuous checkpointing of one subject keeps from one checkpoint to the next.
pub struct Continuous {
    root: Pid,
    kind: &'static dyn TrackerKind,
    before: Option<Before>,
    tracked: HashMap<Pid, Tracked>,
    dirty: DirtyPages,
    /// The next checkpoint starts from nothing.
    is_whole: bool,
    /// At the last look, a descriptor had O_DIRECT.
    bypasses_cache: bool,
}

impl fmt::Debug for Continuous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Continuous")
            .field("root", &self.root)
            .field("tracked", &self.tracked)
            .finish_non_exhaustive()
    }
}

/// A checkpoint that has left its subject; the log makes it durable.
#[derive(Debug)]
pub struct Taken {
    /// The log's promise.
    pub ticket: Ticket,
    /// How long the subject stood still, and for what.
    pub timings: Timings,
    /// How long it stood still before that, for trackers to be attached to new processes; mostly zero.
    pub arming: Duration,
    /// Rounds of pre-copy.
    pub rounds: usize,
    /// Pages copied while the subject ran.
    pub precopied: PageCount,
    /// Pages copied inside the pause.
    pub residual: PageCount,
}

/// What one round or one pause copied.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    rounds: usize,
    precopied: PageCount,
    residual: PageCount,
}

impl Continuous {
    /// Prepares for a subject; nothing of it is touched before the first checkpoint.
    #[must_use]
    pub fn new(root: Pid, kind: &'static dyn TrackerKind) -> Self {
        Self {
            root,
            kind,
            before: None,
            tracked: HashMap::new(),
            dirty: DirtyPages::new(),
            is_whole: true,
            bypasses_cache: false,
        }
    }

    /// The root of the subject.
    #[must_use]
    pub fn root(&self) -> Pid {
        self.root
    }

    /// The processes of the subject at its last checkpoint, without the root.
    #[must_use]
    pub fn descendants(&self) -> Vec<ProcessKey> {
        let Some(before) = &self.before else { return Vec::new() };
        let others = before.processes.iter().filter(|(pid, _)| **pid != self.root);
        others.map(|(_, process)| process.stat.key()).collect()
    }

    /// Takes one checkpoint into the log. `None` when the log has as much to write as it will take.
    ///
    /// # Errors
    ///
    /// As `checkpoint`, or what went wrong with earlier checkpoints in the log. The subject goes on.
    pub fn checkpoint(&mut self, log: &LogWriter, options: &CheckpointOptions) -> Result<Option<Taken>> {
        // What is done to a subject that is about to end must not be done to this one.
        let options = CheckpointOptions { kill: false, ..options.clone() };
        let begun =
            if self.is_whole { log.begin_full(options.sequence) } else { log.begin(options.sequence) };
        let Some(epoch) = begun? else { return Ok(None) };
        let taken = self.take(epoch, &options).inspect_err(|_| self.start_over())?;
        self.is_whole = false;
        Ok(Some(taken))
    }

    /// Forgets everything: the next checkpoint starts from nothing. To be called when the log has lost one.
    pub fn start_over(&mut self) {
        self.before = None;
        self.tracked.clear();
        self.is_whole = true;
    }

    fn take(&mut self, epoch: Epoch, options: &CheckpointOptions) -> Result<Taken> {
        self.look(options)?;
        let arming = self.arm(&epoch)?;
        let mut counts = self.precopy(&epoch)?;
        let before = self.before.as_mut().expect("it was looked at first");
        before.look_at_descriptors_again(options)?;
        epoch.limit_waits(Some(STANDING_WAIT_MAX));
        let (time, stopping) = (SystemTime::now(), Instant::now());
        let mut tree = StoppedTree::stop(self.root)?;
        let stop = stopping.elapsed();
        let (scan, copy) = self.inside(&epoch, &mut tree, options, &mut counts)?;
        tree.resume()?;
        let timings = Timings { pause: stopping.elapsed(), stop, scan, copy };
        let before = self.before.as_mut().expect("it was looked at first");
        before.complete_areas()?;
        let records = super::after(before)?;
        self.bypasses_cache = before.descriptors.bypass_cache();
        before.descriptors.forget();
        let ticket = epoch.finish(records, meta(before, options, time, timings))?;
        let Counts { rounds, precopied, residual } = counts;
        Ok(Taken { ticket, timings, arming, rounds, precopied, residual })
    }

    /// Looks at the subject before anything is done. Descriptors are held for the first time to refuse in time, and
    /// let go of at once: pre-copy can be long, and what the subject closes meanwhile has to be closed.
    fn look(&mut self, options: &CheckpointOptions) -> Result<()> {
        if let Some(before) = &mut self.before {
            return before.look_at_tree_again();
        }
        let mut before = match look_while_it_runs(self.root, options)? {
            Some(before) => before,
            None => {
                let _stopped = StoppedTree::stop(self.root)?;
                look_while_it_stands(self.root, options)?
            }
        };
        self.bypasses_cache = before.descriptors.bypass_cache();
        before.descriptors.forget();
        self.before = Some(Before { is_continuous: true, ..before });
        Ok(())
    }

    /// Has processes tracked that are not yet, in a pause of its own: all their pages can then be copied while they
    /// run. How long that pause was.
    fn arm(&mut self, epoch: &Epoch) -> Result<Duration> {
        let Some(before) = &mut self.before else { return Ok(Duration::ZERO) };
        if before.processes.keys().all(|pid| self.tracked.contains_key(pid)) {
            return Ok(Duration::ZERO);
        }
        let stopping = Instant::now();
        let mut tree = StoppedTree::stop(self.root)?;
        before.refresh_processes(&tree)?;
        leave_ended(&mut self.tracked, before, epoch);
        cover(self.kind, &mut self.tracked, before, &mut tree, epoch)?;
        tree.resume()?;
        Ok(stopping.elapsed())
    }

    /// Copies what is dirty while the subject runs, until little is left or it does not get less.
    fn precopy(&mut self, epoch: &Epoch) -> Result<Counts> {
        let mut counts = Counts::default();
        if !self.kind.properties().rearms_running {
            return Ok(counts);
        }
        let Some(before) = &self.before else { return Ok(counts) };
        // A page that such a read has pinned changes without a fault.
        if self.bypasses_cache {
            return Ok(counts);
        }
        let mut last = PageCount(u64::MAX);
        while counts.rounds < ROUNDS_MAX {
            let mut round = PageCount(0);
            for (pid, tracked) in &mut self.tracked {
                let Some(process) = before.processes.get(pid) else { continue };
                round += tracked.copy_dirty(process, Moment::Running, &mut self.dirty, epoch)?;
            }
            counts.rounds += 1;
            counts.precopied += round;
            if round <= RESIDUAL_GOAL || round.get() > last.get() / 2 {
                break;
            }
            last = round;
        }
        Ok(counts)
    }

    fn inside(
        &mut self,
        epoch: &Epoch,
        tree: &mut StoppedTree,
        options: &CheckpointOptions,
        counts: &mut Counts,
    ) -> Result<(Duration, Duration)> {
        let scanning = Instant::now();
        let before = self.before.as_mut().expect("it was looked at first");
        before.refresh(tree, options)?;
        if counts.rounds > 0 && before.descriptors.bypass_cache() {
            return Err(EngineError::Unsteady);
        }
        leave_ended(&mut self.tracked, before, epoch);
        cover(self.kind, &mut self.tracked, before, tree, epoch)?;
        let scan = scanning.elapsed();
        let copying = Instant::now();
        for (pid, tracked) in &mut self.tracked {
            let Some(process) = before.processes.get_mut(pid) else { continue };
            counts.residual += tracked.copy_dirty(process, Moment::Stopped, &mut self.dirty, epoch)?;
            process.guards.clone_from(tracked.guards());
        }
        copy_objects(before, epoch)?;
        let copy = copying.elapsed();
        descriptors::inside(before)?;
        threads::inside(before, tree)?;
        Ok((scan, copy))
    }
}

/// Takes processes that have ended out of the checkpoint. Before new ones are covered: these may have been given the
/// same space.
fn leave_ended(tracked: &mut HashMap<Pid, Tracked>, before: &Before, epoch: &Epoch) {
    tracked.retain(|pid, tracked| {
        let is_there = before.processes.contains_key(pid);
        if !is_there {
            tracked.leave(epoch);
        }
        is_there
    });
}

/// Attaches trackers to processes that have none, and tells all of them which areas there are.
fn cover(
    kind: &'static dyn TrackerKind,
    tracked: &mut HashMap<Pid, Tracked>,
    before: &mut Before,
    tree: &mut StoppedTree,
    epoch: &Epoch,
) -> Result<()> {
    for stopped in &mut tree.processes {
        let Some(process) = before.processes.get_mut(&stopped.pid) else { continue };
        let known = tracked.get_mut(&stopped.pid).filter(|known| known.is_of(process));
        if known.is_none() {
            let leader = stopped.threads.first_mut().expect("a stopped process has threads");
            let new = Tracked::attach(kind, process, leader, epoch)?;
            tracked.insert(stopped.pid, new);
        }
        if let Some(known) = tracked.get_mut(&stopped.pid)
            && !process.is_covered
        {
            known.cover(process, epoch)?;
            process.is_covered = true;
        }
    }
    Ok(())
}

/// Copies shared objects whole: other processes and descriptors change them too, past any tracker of one address
/// space.
fn copy_objects(before: &mut Before, epoch: &Epoch) -> Result<()> {
    for gone in before.forget_objects() {
        drop_everything(epoch, object_space(gone), EVERYTHING)?;
    }
    let saved: Vec<u64> = before.objects.saved().map(|(id, _)| id).collect();
    if saved.is_empty() {
        return Ok(());
    }
    for id in saved {
        // What is a hole now was none before.
        drop_everything(epoch, object_space(id), EVERYTHING)?;
    }
    let mut copier = Copier::new(epoch, epoch.buffer()?);
    pages::copy_objects(before, &mut copier)?;
    copier.finish()
}

/// Takes a range out of the checkpoint. Waits while too many are waiting to be taken out.
fn drop_everything(epoch: &Epoch, space: image::SpaceId, range: AddressRange) -> Result<()> {
    const NAP: Duration = Duration::from_micros(20);
    while !epoch.drop_range(space, range)? {
        std::thread::sleep(NAP);
    }
    Ok(())
}
