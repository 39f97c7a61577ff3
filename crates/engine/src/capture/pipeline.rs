//! The capture of one stopped subject, as values: `Stopped`, then `Captured`, which is resumed, held or killed.
//!
//! Owns: the order inside a stop, written here once: processes and mappings, descriptor tables, state of descriptors
//! and files, threads, pages, objects.
//! Invariants: each step consumes the one before. Dropping a value of any step resumes the subject. Remote calls are over
//! before a page that they use is copied.
//! Does not: know how pages are found and copied; a `Memory` does.

use std::marker::PhantomData;
use std::time::SystemTime;

use model::Pid;
use sys::clock::{Clock, Stopwatch};
use tracee::{Freezer, StoppedTree, Urgent};

use super::before::Before;
use super::phases::{Phase, Phases};
use super::watched::AfterPause;
use crate::error::Result;

/// How the pages of a subject are captured.
pub(super) trait Memory {
    /// What tells that one stop has taken only some of the pages.
    type Part;

    /// Takes in the mappings as they are in this stop.
    fn settle(&mut self, _before: &mut Before, _tree: &mut StoppedTree) -> Result<Option<Self::Part>> {
        Ok(None)
    }

    /// Takes in the descriptors as they are in this stop.
    fn check(&self, _before: &Before) -> Result<()> {
        Ok(())
    }

    /// Whether pages come before descriptors and threads: a handler lifts protection, and what a thread needs to go on
    /// (its stack, its restartable sequence) is open after the scan only. Else the thread would sleep once more, which
    /// looks as if it had begun another wait (`tracee::interruption`).
    fn comes_first(&self) -> bool {
        false
    }

    /// Binds the state of watched files to the checkpoint, while duplicates of descriptors are open.
    fn bind(&mut self, _before: &Before) {}

    /// Copies pages.
    fn write(&mut self, before: &mut Before, phases: &mut Phases) -> Result<Option<Self::Part>>;

    /// Copies shared objects that are not among the pages.
    fn write_objects(&mut self, _before: &mut Before) -> Result<()> {
        Ok(())
    }
}

/// A subject of which every thread is stopped.
pub(super) struct Stopped {
    /// Dropped in this order: the tree is resumed first.
    pub(super) tree: StoppedTree,
    urgent: Urgent,
    /// When the subject was as it is captured.
    pub(super) time: SystemTime,
    /// What the stop was spent on so far.
    pub(super) phases: Phases,
}

/// What one stop has taken.
pub(super) enum Capture<P> {
    /// Everything.
    Whole(Captured),
    /// Some of the pages.
    Part(Stopped, P),
}

/// A stopped subject of which everything is taken.
pub(super) struct Captured(pub(super) Stopped);

/// A subject that is stopped and captured, and was neither resumed nor killed yet. Dropping it resumes the subject.
///
/// It belongs to the thread that stopped the subject: ptrace(2) takes requests of no other.
#[derive(Debug)]
pub struct Held {
    /// Dropped in this order: the tree is resumed first.
    tree: StoppedTree,
    watch: Option<AfterPause>,
    thread: PhantomData<*const ()>,
}

impl Stopped {
    /// Stops a subject. `phases` are those before the stop.
    pub(super) fn stop(freezer: &mut Freezer, root: Pid, urgent: Urgent, mut phases: Phases) -> Result<Self> {
        // Before the stop: what the subject has done by then is in the checkpoint.
        let time = Clock::default().wall();
        let tree = freezer.stop(root)?;
        phases.began = tree.began;
        phases[Phase::Stop] = tree.began.elapsed();
        Ok(Self { tree, urgent, time, phases })
    }

    /// Captures it. A subject that goes on without a checkpoint may close what it likes.
    pub(super) fn capture<M: Memory>(
        mut self,
        before: &mut Before,
        memory: &mut M,
    ) -> Result<Capture<M::Part>> {
        let outcome = take(&mut self.tree, &mut self.phases, before, memory);
        if !matches!(outcome, Ok(None)) && !before.descriptors.options.kill {
            before.descriptors.let_go();
        }
        Ok(match outcome? {
            Some(part) => Capture::Part(self, part),
            None => Capture::Whole(Captured(self)),
        })
    }

    /// Others are stopped by now, too: that time counts as a part of the stop.
    pub(super) fn note_stopped(&mut self) {
        self.phases[Phase::Stop] = self.phases.began.elapsed();
    }

    /// Resumes it, captured or not.
    pub(super) fn resume(self) -> Result<Phases> {
        let Self { tree, urgent, mut phases, .. } = self;
        let mut laps = Stopwatch::since(phases.began + phases.pause());
        tree.resume()?;
        phases[Phase::Resume] = laps.lap();
        drop(urgent);
        Ok(phases)
    }
}

/// Takes everything of a stopped tree, in this order.
pub(super) fn take<M: Memory>(
    tree: &mut StoppedTree,
    phases: &mut Phases,
    before: &mut Before,
    memory: &mut M,
) -> Result<Option<M::Part>> {
    let mut laps = Stopwatch::since(phases.began + phases[Phase::Stop]);
    before.processes.settle(tree, &mut before.objects)?;
    let part = memory.settle(before, tree)?;
    phases[Phase::Areas] = laps.lap();
    if part.is_some() {
        return Ok(part);
    }
    before.settle_descriptors()?;
    memory.check(before)?;
    phases[Phase::Tables] = laps.lap();
    phases.memory_first = memory.comes_first();
    if !phases.memory_first {
        take_state(before, tree, memory, phases, &mut laps)?;
    }
    let part = memory.write(before, phases)?;
    phases[Phase::Copy] = laps.lap().saturating_sub(phases[Phase::Scan]);
    if part.is_some() {
        return Ok(part);
    }
    memory.write_objects(before)?;
    phases[Phase::Objects] = laps.lap();
    if phases.memory_first {
        take_state(before, tree, memory, phases, &mut laps)?;
    }
    // Last of all: it vouches for all that was read.
    tree.confirm()?;
    Ok(None)
}

/// Takes what a tree has beside its memory.
fn take_state<M: Memory>(
    before: &mut Before,
    tree: &mut StoppedTree,
    memory: &mut M,
    phases: &mut Phases,
    laps: &mut Stopwatch,
) -> Result<()> {
    before.descriptors.take(&before.processes)?;
    phases[Phase::Descriptors] = laps.lap();
    memory.bind(before);
    before.descriptors.end_take();
    phases[Phase::Files] = laps.lap();
    let Before { processes, descriptors, threads, .. } = before;
    threads.take(processes, descriptors, tree)?;
    phases[Phase::Threads] = laps.lap();
    Ok(())
}

impl Captured {
    /// Leaves the subject stopped, and gives the priority of the stop back.
    pub(super) fn hold(self, watch: Option<AfterPause>) -> Held {
        Held { tree: self.0.tree, watch, thread: PhantomData }
    }
}

impl Held {
    /// Resumes the subject.
    ///
    /// # Errors
    ///
    /// When a thread cannot be detached. All others are.
    pub fn resume(self) -> Result<()> {
        let Self { tree, watch, .. } = self;
        tree.resume()?;
        drop(watch);
        Ok(())
    }

    /// Kills every process of the subject, and returns when all have ended.
    ///
    /// # Errors
    ///
    /// When a process cannot be killed.
    pub fn kill(self) -> Result<()> {
        Ok(self.tree.kill()?)
    }
}
