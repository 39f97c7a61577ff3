//! The present state of a stopped tree, as the records of a checkpoint without page contents.
//!
//! Owns: the inspection of a stopped tree for a comparison with a checkpoint.
//! Invariants: the inspection does not change the tree. An obstacle to a checkpoint is an error here, too.
//! Does not: compare.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::fs::File;

use image::{RecordSet, SpaceId};
use model::{AddressRange, Pid};
use tracee::{Roots, StoppedTree};
use track::Moment;

use super::address_space::AddressSpace;
use super::before::Before;
use super::options::CheckpointOptions;
use super::pages::{self, PagePlan};
use super::phases::Phases;
use super::pipeline::{self, Memory};
use super::retry::{CAPTURES, Retries};
use crate::error::{EngineError, Result};

/// The state of a stopped tree.
pub(crate) struct Present {
    /// The records that a checkpoint of the tree would contain.
    pub(crate) records: RecordSet,
    /// The pages that the checkpoint would contain, each range with the id of its space in the records.
    pub(crate) pages: Vec<(SpaceId, AddressRange)>,
    /// Open files of the objects whose pages the checkpoint would contain, by their ids in the records.
    pub(crate) objects: BTreeMap<u64, File>,
    pub(crate) spaces: HashMap<Pid, AddressSpace>,
}

/// Inspects a stopped tree. Transient failures are retried, because the kernel may still be finishing an
/// action that the tree began before the stop.
///
/// `tracked` contains the processes to which this program has attached a tracker.
pub(crate) fn present(
    tree: &mut StoppedTree,
    options: &CheckpointOptions,
    tracked: &HashSet<Pid>,
) -> Result<Present> {
    let roots = tree.roots.clone();
    if tree.processes.is_empty() {
        return Err(EngineError::Changed("no process of it is left".to_owned()));
    }
    let mut retries = Retries::of(CAPTURES, &roots);
    loop {
        match inspect(&roots, tree, options, tracked) {
            Ok(present) => return Ok(present),
            Err(error) => std::thread::sleep(retries.after(error).again()?),
        }
    }
}

fn inspect(
    roots: &Roots,
    tree: &mut StoppedTree,
    options: &CheckpointOptions,
    tracked: &HashSet<Pid>,
) -> Result<Present> {
    let before = Before::inspect_tracked(roots, options, Moment::Stopped, tracked.clone());
    let mut before = before.map_err(EngineError::or_refusal)?;
    let mut pages = Pages(None);
    let taken = pipeline::take(tree, &mut Phases::new(), &mut before, &mut pages);
    let outcome = taken.and_then(|part| match part {
        None => before.records(),
        Some(never) => match never {},
    });
    let records = outcome.inspect_err(|_| before.descriptors.release())?;
    let plan = pages.0.unwrap_or_default();
    let objects = before.objects.files;
    let spaces = before.processes.living.into_iter().map(|(pid, process)| (pid, process.space));
    Ok(Present { records, pages: plan.ranges().collect(), objects, spaces: spaces.collect() })
}

/// Finds pages without copying them.
struct Pages(Option<PagePlan>);

impl Memory for Pages {
    type Part = Infallible;

    fn write(&mut self, before: &mut Before, _: &mut Phases) -> Result<Option<Infallible>> {
        self.0 = Some(pages::scan(before)?);
        Ok(None)
    }

    fn write_objects(&mut self, before: &mut Before) -> Result<()> {
        before.objects.inside()
    }
}
