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

use std::os::fd::AsFd;

use store::ImageReader;
use sys::pidfd;
use tracee::StoppedTree;

use super::finish::set_registers;
use super::plan::Plan;
use crate::capture::{CheckpointOptions, present};
use crate::error::{EngineError, Result};
use compare::Comparison;

/// The numbers of differences that were set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// The number of pages that were written or returned to the kernel.
    pub pages: u64,
    /// The number of open file descriptions whose position or flags were set.
    pub descriptions: u64,
}

/// Sets a stopped tree back to one of its checkpoints: registers, memory, and positions and flags of its
/// descriptors. `options` must be the options of the checkpoint.
///
/// # Errors
///
/// `NotInPlace` with all differences that cannot be set; the tree is unchanged and runs on. `InPart` if a step
/// failed after the first change; the tree was killed.
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
