//! Captures one stopped subject. Each state of the subject has a type: `Stopped`, then `Captured`. A
//! `Captured` subject is resumed, held or killed.
//!
//! Owns: the order of the steps of a stop: processes and mappings, descriptor tables, state of descriptors
//! and files, threads, pages, objects.
//! Invariants: each step consumes the value of the previous step. Dropping a value of any step resumes the
//! subject. Remote calls (system calls that a stopped thread executes for this program) use some pages. These
//! pages are copied before the first remote call or after the last one.
//! Does not: find or copy pages; an implementation of `Memory` does.

use std::marker::PhantomData;
use std::time::SystemTime;

use resource::state;
use sys::clock::{Clock, Stopwatch};
use tracee::{Freezer, Roots, StoppedTree, Urgent};

use super::before::Before;
use super::phases::{Phase, Phases};
use super::watched::AfterPause;
use crate::error::Result;

/// A method of capturing the pages of a subject.
pub(super) trait Memory {
    /// The result of a stop that has captured only some of the pages.
    type Part;

    /// Updates the mappings to their state in this stop.
    fn settle(&mut self, _before: &mut Before, _tree: &mut StoppedTree) -> Result<Option<Self::Part>> {
        Ok(None)
    }

    /// Checks the descriptors in this stop. An error ends the capture.
    fn check(&self, _before: &Before) -> Result<()> {
        Ok(())
    }

    /// Binds the state of watched files to the checkpoint. Called while duplicates of the descriptors are
    /// open.
    fn bind(&mut self, _before: &Before) {}

    /// Copies pages.
    fn write(&mut self, before: &mut Before, phases: &mut Phases) -> Result<Option<Self::Part>>;

    /// Copies shared objects that `write` has not copied.
    fn write_objects(&mut self, _before: &mut Before) -> Result<()> {
        Ok(())
    }
}

/// A subject whose threads are all stopped.
pub(super) struct Stopped {
    /// The stopped tree. Fields are dropped in the order of declaration, so the tree is resumed before
    /// `urgent` is dropped.
    pub(super) tree: StoppedTree,
    urgent: Urgent,
    /// The wall-clock time of the captured state.
    pub(super) time: SystemTime,
    /// The durations of the phases so far.
    pub(super) phases: Phases,
}

pub(super) enum Capture<P> {
    /// All state was captured.
    Whole(Captured),
    /// Only some of the pages were captured.
    Part(Stopped, P),
}

/// A stopped subject whose state is completely captured.
pub(super) struct Captured(pub(super) Stopped);

/// A subject that is stopped and captured, and not yet resumed or killed. Dropping the value resumes the
/// subject.
///
/// Only the thread that stopped the subject can use this value, because ptrace(2) accepts requests from no
/// other thread.
#[derive(Debug)]
pub struct Held {
    /// The stopped tree. Fields are dropped in the order of declaration, so the tree is resumed before
    /// `watch` is dropped.
    tree: StoppedTree,
    watch: Option<AfterPause>,
    thread: PhantomData<*const ()>,
}

impl Stopped {
    /// Stops a subject. `phases` contains the durations of the phases before the stop.
    pub(super) fn stop(
        freezer: &mut Freezer,
        roots: &Roots,
        urgent: Urgent,
        mut phases: Phases,
    ) -> Result<Self> {
        // The clock is read before the stop, so all actions of the subject before this time are in the
        // checkpoint.
        let time = Clock::default().wall();
        let tree = freezer.stop(roots)?;
        phases.began = tree.began;
        phases[Phase::Stop] = tree.began.elapsed();
        Ok(Self { tree, urgent, time, phases })
    }

    /// Captures the subject. After a failed or incomplete capture, the subject continues and may close
    /// descriptors. Therefore closes the duplicates of the descriptors in this process, unless the subject is
    /// to be killed.
    pub(super) fn capture<M: Memory>(
        mut self,
        before: &mut Before,
        memory: &mut M,
    ) -> Result<Capture<M::Part>> {
        let outcome = take(&mut self.tree, &mut self.phases, before, memory);
        if !matches!(outcome, Ok(None)) && !before.descriptors.options.kill {
            before.descriptors.close_duplicates();
        }
        Ok(match outcome? {
            Some(part) => Capture::Part(self, part),
            None => Capture::Whole(Captured(self)),
        })
    }

    /// Resumes the subject, captured or not.
    pub(super) fn resume(self) -> Result<Phases> {
        let Self { tree, urgent, mut phases, .. } = self;
        let mut laps = Stopwatch::since(phases.began + phases.pause());
        tree.resume()?;
        phases[Phase::Resume] = laps.lap();
        drop(urgent);
        Ok(phases)
    }
}

/// Captures the whole state of a stopped tree.
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
    before.objects.settle()?;
    phases[Phase::Tables] = laps.lap();
    take_state(before, tree, memory, phases, &mut laps)?;
    let part = memory.write(before, phases)?;
    phases[Phase::Copy] = laps.lap().saturating_sub(phases[Phase::Scan]);
    if part.is_some() {
        return Ok(part);
    }
    memory.write_objects(before)?;
    phases[Phase::Objects] = laps.lap();
    // `confirm` must come last. If a process was killed in the stop, `confirm` fails. If `confirm` succeeds,
    // all state that was read is valid.
    tree.confirm()?;
    Ok(None)
}

/// Captures the state of a tree except its memory.
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
    /// Leaves the subject stopped, and restores the priority of the calling thread.
    pub(super) fn hold(self, watch: Option<AfterPause>) -> Held {
        Held { tree: self.0.tree, watch, thread: PhantomData }
    }
}

impl Held {
    pub(super) fn of(tree: StoppedTree) -> Self {
        Self { tree, watch: None, thread: PhantomData }
    }

    /// Changes the stopped tree. If `change` fails, the tree is resumed or has been killed.
    pub(crate) fn change<T>(
        self,
        change: impl FnOnce(StoppedTree) -> Result<(StoppedTree, T)>,
    ) -> Result<(Self, T)> {
        let (tree, changed) = change(self.tree)?;
        Ok((Self { tree, ..self }, changed))
    }

    /// Resumes the subject.
    ///
    /// # Errors
    ///
    /// Returns an error if a thread cannot be detached. All other threads are detached.
    pub fn resume(self) -> Result<()> {
        let Self { tree, watch, .. } = self;
        tree.resume()?;
        drop(watch);
        Ok(())
    }

    /// Kills every process of the subject. Returns when all processes have ended. Objects outside the image, for
    /// example mutexes in shared files, stay as they were in the stop.
    ///
    /// # Errors
    ///
    /// Returns an error if a process cannot be killed.
    pub fn kill(self) -> Result<()> {
        for thread in self.tree.processes.iter().flat_map(|process| &process.threads) {
            for kind in state::REGISTRY {
                // The subject ends in any case. After an error, the restore finds a changed object and refuses it.
                let _ = kind.before_kill(thread.pid(), thread.tid());
            }
        }
        Ok(self.tree.kill()?)
    }
}
