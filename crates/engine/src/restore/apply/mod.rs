//! Restores a checkpoint into living processes: sets a stopped tree back to one of its checkpoints.
//!
//! Owns: the order of the steps, and what happens to a tree when a step fails.
//! Invariants: no change is made before every difference is known to be settable. A tree that was changed in part
//! never runs.
//! Does not: set files back, or create or end processes, threads, descriptors or mappings. If one of these objects
//! differs, the tree is refused, and the error names the difference. The caller can kill the tree and restore the
//! checkpoint instead.

mod compare;
mod memory;
mod renumber;
mod states;

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use model::Pid;
use store::ImageReader;
use sys::pidfd;
use tracee::StoppedTree;

use super::finish::set_registers;
use super::plan::Plan;
use crate::capture::{CheckpointOptions, Continuous, Held, present};
use crate::error::{EngineError, Result};
use compare::Comparison;

/// The numbers of differences that were set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// The number of pages of processes that were compared with the checkpoint.
    pub compared: u64,
    /// The number of pages that were written or returned to the kernel.
    pub pages: u64,
    /// The number of open file descriptions whose position or flags were set.
    pub descriptions: u64,
}

/// Describes a tree to which a checkpoint is applied.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApplyOptions<'a> {
    /// The options of the checkpoint.
    pub checkpoint: Option<&'a CheckpointOptions>,
    /// The present number for each pid and tid of the checkpoint that has another number now.
    pub numbers: Option<&'a HashMap<Pid, Pid>>,
    /// The continuous checkpointing of the tree. Its trackers know the pages that the tree has written since its last
    /// checkpoint. If this checkpoint is applied, only these pages are compared.
    pub tracked_by: Option<&'a Continuous>,
}

impl Held {
    /// Sets a held subject back to one of its checkpoints, see [`apply`]. The subject stays stopped.
    ///
    /// # Errors
    ///
    /// The same as [`apply`].
    pub fn apply(self, reader: ImageReader, options: &ApplyOptions<'_>) -> Result<(Self, Applied)> {
        self.change(|tree| apply(reader, tree, options))
    }
}

/// Sets a stopped tree back to one of its checkpoints: registers, memory, timers, pending signals, and positions and
/// flags of its descriptors.
///
/// # Errors
///
/// `NotInPlace` with all differences that cannot be set; the tree is unchanged and runs on. `InPart` if a step
/// failed after the first change; the tree was killed. If this process ends after the first change, the kernel kills the
/// tree.
pub fn apply(
    mut reader: ImageReader,
    mut tree: StoppedTree,
    options: &ApplyOptions<'_>,
) -> Result<(StoppedTree, Applied)> {
    let none = HashMap::new();
    let numbers = options.numbers.unwrap_or(&none);
    let mut wanted = Plan::of(&mut reader)?;
    renumber::renumber(&mut wanted, numbers);
    let capture = CheckpointOptions { kill: false, ..options.checkpoint.cloned().unwrap_or_default() };
    let tracked = options.tracked_by.map_or_else(HashSet::new, Continuous::tracked_pids);
    let mut present = present(&mut tree, &capture, &tracked)?;
    let is = Plan::read(std::mem::take(&mut present.records)).map_err(of_living)?;
    let comparison = Comparison::of(&is, &wanted, &|number| renumber::present_number(numbers, number))?;
    let objects = memory::open_objects(&wanted, &comparison, &present)?;
    let written = |pid| options.tracked_by.and_then(|subject| subject.written_since(reader.commit(), pid));
    let due = memory::Due::of(reader.index(), &wanted, &present, written);
    tree.end_with_tracer(true)?;
    let change = |tree: &mut StoppedTree| {
        let mut pages = memory::give_back(reader.index(), &wanted, &present, tree)?;
        pages += memory::write_processes(&reader, &wanted, &present, &due)?;
        pages += memory::write_objects(&reader, &objects, &present)?;
        for ((pid, fd), envelope) in &comparison.descriptions {
            let handle = pidfd::open(*pid)?;
            let file = pidfd::duplicate(handle.as_fd(), *pid, *fd)?;
            envelope.apply(file.as_fd(), false)?;
        }
        // The timers run from here on.
        states::set(&is, &wanted, &present, tree)?;
        for process in wanted.living() {
            let Some(space) = present.spaces.get(&process.pid) else { continue };
            set_registers(process, &space.memory)?;
        }
        let descriptions = comparison.descriptions.len() as u64;
        Ok(Applied { compared: due.pages(), pages, descriptions })
    };
    let changed = change(&mut tree);
    match changed.and_then(|applied| Ok(tree.end_with_tracer(false).map(|()| applied)?)) {
        Ok(applied) => Ok((tree, applied)),
        Err(error) => {
            tree.kill()?;
            Err(EngineError::InPart(Box::new(error)))
        }
    }
}

/// Converts `Incomplete` into `Changed`. If a record of a living tree is missing, a process or thread has ended
/// meanwhile; the image is not damaged.
fn of_living(error: EngineError) -> EngineError {
    match error {
        EngineError::Incomplete(why) => EngineError::Changed(why),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_tree_that_lacks_something_is_no_damaged_image() {
        let error = Plan::read(image::RecordSet::new()).map(drop).unwrap_err();
        assert!(matches!(error, EngineError::Incomplete(_)));
        assert!(matches!(of_living(error), EngineError::Changed(_)));
    }
}
