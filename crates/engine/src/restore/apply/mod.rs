//! A restore into living processes: takes a stopped tree back to a checkpoint of it.
//!
//! Owns: the order of the steps, and the fate of a tree when a step fails.
//! Invariants: nothing is changed before all differences are known to be settable. A partly changed tree never runs.
//! Does not: take files back; create or end processes, threads, descriptors or mappings. A tree that differs in these
//! is refused by name; it can be killed and restored instead.

mod compare;
mod memory;

use std::os::fd::AsFd;

use store::ImageReader;
use sys::pidfd;
use tracee::StoppedTree;

use super::finish::set_registers;
use super::plan::Plan;
use crate::capture::{CheckpointOptions, present};
use crate::error::{EngineError, Result};
use compare::Comparison;

/// What was different, and was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Pages that were written or given back.
    pub pages: u64,
    /// Descriptions whose position or flags were set.
    pub descriptions: u64,
}

/// Brings a stopped tree back to a checkpoint of it: registers, memory, positions and flags of its descriptors. The
/// options are those of the checkpoint.
///
/// # Errors
///
/// `NotInPlace` with everything that differs and cannot be set: the tree goes on as it was. `InPart` when a step failed
/// after the first change: the tree has been killed.
pub fn apply(
    mut reader: ImageReader,
    mut tree: StoppedTree,
    options: &CheckpointOptions,
) -> Result<(StoppedTree, Applied)> {
    let wanted = Plan::of(&mut reader)?;
    let capture = CheckpointOptions { kill: false, ..options.clone() };
    let mut present = present(&mut tree, &capture)?;
    let is = Plan::read(std::mem::take(&mut present.records)).map_err(of_living)?;
    let comparison = Comparison::of(&is, &wanted)?;
    let objects = memory::open_objects(&wanted, &comparison, &present)?;
    let mut change = || {
        let mut pages = memory::give_back(reader.index(), &wanted, &present, &mut tree)?;
        pages += memory::write_processes(&reader, &wanted, &present)?;
        pages += memory::write_objects(&reader, &objects, &present)?;
        for ((pid, fd), envelope) in &comparison.descriptions {
            let handle = pidfd::open(*pid)?;
            let file = pidfd::duplicate(handle.as_fd(), *pid, *fd)?;
            envelope.apply(file.as_fd(), false)?;
        }
        for process in wanted.living() {
            let Some(space) = present.spaces.get(&process.pid) else { continue };
            set_registers(process, &space.memory)?;
        }
        Ok(Applied { pages, descriptions: comparison.descriptions.len() as u64 })
    };
    match change() {
        Ok(applied) => Ok((tree, applied)),
        Err(error) => {
            tree.kill()?;
            Err(EngineError::InPart(Box::new(error)))
        }
    }
}

/// What the records of a living tree lack has ended meanwhile: the image is not damaged.
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
