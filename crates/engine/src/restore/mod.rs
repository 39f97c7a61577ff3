//! A restore, from the verified image to the running tree.
//!
//! Owns: the order of the steps.
//! Invariants: every record is consumed or the restore is refused by the record's name, before any process is
//! made; processes under construction die with this program; none runs before all are whole.
//! Does not: know kinds; it asks the registries.

mod content;
mod files;
mod finish;
mod layout;
mod plan;
mod tree;

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use model::{Inode, Pid};
use resource::Shared;
use resource::fd::FilePolicy;
use store::ImageReader;
use sys::clone::Parent;

use crate::error::{EngineError, Result};
use plan::Plan;

/// Which process numbers a restored tree gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PidPolicy {
    /// The same numbers; when one is taken, a new pid namespace.
    #[default]
    Auto,
    /// The same numbers or a refusal.
    Same,
    /// Always a new pid namespace.
    Namespace,
    /// Whatever numbers are free.
    Any,
}

/// What a restore is told.
#[derive(Debug)]
pub struct RestoreOptions {
    /// Which process numbers.
    pub pid: PidPolicy,
    /// Who becomes the parent of the tree's root.
    pub parent: Parent,
    /// Threads that fill memory.
    pub threads: NonZeroUsize,
    /// Descriptors of ours that the subject may get back: device, inode, descriptor.
    pub inherited: Vec<(u64, Inode, OwnedFd)>,
    /// What happens to regular files that have changed.
    pub files: FilePolicy,
    /// The subject died in a crash, and its TCP connections with it.
    pub connections_lost: bool,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        const THREADS: NonZeroUsize = NonZeroUsize::new(2).expect("two is not zero");
        Self {
            pid: PidPolicy::default(),
            parent: Parent::Caller,
            threads: THREADS,
            inherited: Vec::new(),
            files: FilePolicy::default(),
            connections_lost: false,
        }
    }
}

/// A tree that runs again.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Its root.
    pub root: Pid,
    /// All its processes.
    pub pids: Vec<Pid>,
    /// From the call to the first instruction.
    pub total: Duration,
    /// What took how long.
    pub phases: RestorePhases,
}

/// How long the steps of a restore took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RestorePhases {
    /// Decoding and checking; waiting for process numbers to become free.
    pub plan: Duration,
    /// Opening files and filling shared objects.
    pub open: Duration,
    /// Creating processes and laying out their memory.
    pub build: Duration,
    /// Filling their memory.
    pub fill: Duration,
    /// Descriptors, threads, state, registers.
    pub finish: Duration,
}

/// Measures phases that follow one another.
struct Lap(Instant);

impl Lap {
    fn take(&mut self) -> Duration {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.0, now))
    }
}

/// Builds the tree of an image and lets it run.
pub fn restore(mut reader: ImageReader, options: RestoreOptions) -> Result<Restored> {
    let started = Instant::now();
    if matches!(options.pid, PidPolicy::Namespace | PidPolicy::Any) {
        return Err(EngineError::NotBuilt("restoring with other process numbers (`--pid ns`, `--pid any`)"));
    }
    let mut lap = Lap(started);
    let mut phases = RestorePhases::default();
    let records = reader.take_records();
    let plan = Plan::read(records)?;
    plan.check_kernel()?;
    plan.check_pids()?;
    phases.plan = lap.take();
    finish::prepare(&plan)?;
    let mut shared = Shared::default();
    let open = files::open(&plan, options.inherited, options.files, options.connections_lost, &mut shared)?;
    content::fill_objects(&reader, &plan, &open)?;
    phases.open = lap.take();
    let mut built = tree::build(&plan, &open, options.parent)?;
    layout::lay_out(&plan, &open, &mut built)?;
    phases.build = lap.take();
    content::fill_processes(&reader, &plan, &built, options.threads)?;
    phases.fill = lap.take();
    layout::advise(&plan, &mut built)?;
    files::install(&plan, &open, &mut built)?;
    finish::finish(&plan, &open, built, &mut shared)?;
    phases.finish = lap.take();
    Ok(Restored { root: plan.root(), pids: plan.pids(), total: started.elapsed(), phases })
}
