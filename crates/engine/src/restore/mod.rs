//! A restore, from the verified image to the running tree.
//!
//! Owns: the order of the steps.
//! Invariants: if a record is not consumed, the restore is refused by the name of the record, before any process is
//! created. Processes under construction die with this process. None runs before all are complete.
//! Does not: know kinds; it calls the registries.

mod apply;
mod built;
mod check;
mod compared;
mod content;
mod files;
mod finish;
mod fresh;
mod inventory;
mod layout;
mod lazy;
mod numbers;
mod plan;
mod segments;
mod tree;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::time::Duration;

use model::{Inode, Pid, Signal};
use resource::Shared;
use resource::fd::{Connections, Kept};
use resource::files::FileRecord;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use store::ImageReader;
use sys::clock::Stopwatch;
use tracee::{PostRestoreTracer, Stub};

use crate::error::{EngineError, Result};
pub use apply::{Applied, apply};
use built::Built;
use compared::Compared;
pub use compared::{Aside, FilePolicy, Files};
use fresh::FreshMemory;
pub use inventory::{ImageDescriptor, ImageMapping, ImageProcess, Inventory, ProcessState, inventory};
use lazy::Lazy;
use plan::Plan;
pub use tree::FilterInstall;

/// Which process numbers a restored tree gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PidPolicy {
    /// The same pids or a refusal.
    #[default]
    Auto,
    /// The same pids or a refusal.
    Same,
    /// A new pid namespace; refused, as it is not built yet.
    Namespace,
    /// Whatever pids are free; refused, as it is not built yet.
    Any,
}

/// What a restore is told.
#[derive(Debug, Default)]
pub struct RestoreOptions {
    /// Which process numbers.
    pub pid: PidPolicy,
    /// Descriptors of ours that the subject may get back: device, inode, descriptor.
    pub inherited: Vec<(u64, Inode, OwnedFd)>,
    /// Listeners that were kept while the subject was dead: those that it had at the checkpoint come back as they are,
    /// with the connections that wait in them.
    pub held: Vec<OwnedFd>,
    /// TCP connections to the outside that were kept (`Taken::connections`): those that the program has neither read from
    /// nor written to since the checkpoint come back as they are.
    pub kept: Kept,
    /// What happens to regular files that the subject writes.
    pub files: Files,
    /// The subject died in a crash, and its TCP connections with it, but for those that were kept.
    pub connections_lost: bool,
    /// The terminal of ours whose foreground process group becomes one of the subject. SIGTTOU must be blocked.
    pub terminal: Option<OwnedFd>,
    /// Has what the tree does to files watched.
    pub watch: Option<FilterInstall>,
}

/// A tree that runs again.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Its root.
    pub root: Pid,
    /// All its processes.
    pub pids: Vec<Pid>,
    /// The group of it that is to be in the foreground of our terminal, if it had a terminal; was put there, if one was
    /// given.
    pub foreground: Option<Pid>,
    /// A time on CLOCK_MONOTONIC before the first thread was resumed, and after all zombies had ended.
    pub resumed_after: Duration,
    /// From the call to the first instruction.
    pub total: Duration,
    /// From the call until all memory was there; later than the first instruction if some of it came later.
    pub filled: Duration,
    /// What has become of its connections to the outside.
    pub connections: Connections,
    /// What took how long.
    pub phases: RestorePhases,
}

impl Restored {
    /// A tree that runs from now on.
    fn of(plan: &Plan, phases: RestorePhases, connections: Connections) -> Self {
        let (root, pids) = (plan.processes[0].pid, plan.pids());
        Self { root, pids, resumed_after: sys::clock::monotonic(), connections, phases, ..Self::default() }
    }
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

/// How a thread is resumed.
type LetGo<'a> = &'a mut dyn FnMut(Stub, Option<Signal>) -> std::result::Result<(), sys::Error>;

/// Decodes and checks the records of an image, as a restore does before it opens or makes anything.
///
/// # Errors
///
/// `Incomplete`, `UnknownRecord`, or a record that its kind cannot decode.
pub fn check_records(records: image::RecordSet) -> Result<()> {
    Plan::read(records).map(drop)
}

/// The regular files that an image has recorded.
///
/// # Errors
///
/// `FilesNotRecorded` for an image of an earlier version; as `check_records`.
pub fn recorded_files(mut reader: ImageReader) -> Result<Vec<FileRecord>> {
    Plan::of(&mut reader)?.files.ok_or(EngineError::FilesNotRecorded)
}

/// Compares files as a restore does before it makes or changes anything.
///
/// # Errors
///
/// `FilesChanged` with every file that does not fit; as `check_records`.
pub fn compare_files(mut reader: ImageReader, files: Files) -> Result<()> {
    let plan = Plan::of(&mut reader)?;
    Compared::compare(&plan, reader.commit().time, files).map(drop)
}

/// Tells whether the pids of an image are free, as a restore does before it makes anything.
///
/// # Errors
///
/// The first pid that is not; as `check_records`.
pub fn check_pids(mut reader: ImageReader) -> Result<()> {
    Plan::of(&mut reader)?.check_pids()
}

/// Builds the tree of an image and lets it run.
///
/// # Errors
///
/// Why there is no tree; none was begun then, or it ends with this program.
pub fn restore(reader: ImageReader, options: RestoreOptions) -> Result<Restored> {
    restore_with(reader, options, None)
}

/// Builds the tree of an image and lets it run while its memory is still being filled: what it touches first comes
/// first. Calls `running` at the first instruction, and returns when all is there and nothing holds the tree any more.
///
/// # Errors
///
/// As for `restore`; `LazyMissing` before anything was begun; `LazyLost` when the tree has run and was killed.
pub fn restore_lazily(
    reader: ImageReader,
    options: RestoreOptions,
    mut running: impl FnMut(&Restored),
) -> Result<Restored> {
    restore_with(reader, options, Some(&mut running))
}

/// Makes the files in /proc of this process, and of those that it makes, belong to its user: PR_SET_DUMPABLE of
/// prctl(2). They belong to root when the file of this program has capabilities (setcap). Other processes of the user
/// gain nothing: to trace this one takes the same capabilities.
fn own_files_in_proc() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .map_err(|errno| sys::Error::new("make the own files in /proc accessible", errno).into())
}

fn given(options: &mut RestoreOptions) -> files::Given {
    files::Given {
        inherited: std::mem::take(&mut options.inherited),
        held: std::mem::take(&mut options.held),
        kept: std::mem::take(&mut options.kept),
        covered: options.files.covered.clone(),
        connections_lost: options.connections_lost,
    }
}

fn require_same_pids(policy: PidPolicy) -> Result<()> {
    if matches!(policy, PidPolicy::Namespace | PidPolicy::Any) {
        return Err(EngineError::NotBuilt("restoring with other pids (--pid ns, --pid any)"));
    }
    Ok(())
}

fn restore_with(
    mut reader: ImageReader,
    mut options: RestoreOptions,
    running: Option<&mut dyn FnMut(&Restored)>,
) -> Result<Restored> {
    let started = Stopwatch::start();
    require_same_pids(options.pid)?;
    own_files_in_proc()?;
    let mut lap = started;
    let mut phases = RestorePhases::default();
    let plan = Plan::of(&mut reader)?;
    // A program that still runs has changed its files, too.
    plan.check_pids()?;
    let given = given(&mut options);
    let mut compared = Compared::compare(&plan, reader.commit().time, options.files)?;
    phases.plan = lap.lap();
    let lazy = if running.is_some() { Lazy::prepare(&plan, reader.index())? } else { None };
    finish::prepare(&plan)?;
    let mut shared = Shared::default();
    let mut open = files::open(&plan, given, &mut shared)?;
    content::fill_objects(&reader, &plan, &open)?;
    phases.open = lap.lap();
    let mut built = tree::build(&plan, &open, options.watch)?;
    layout::lay_out(&plan, &open, &mut built)?;
    phases.build = lap.lap();
    let comes_later = |extent: &_| lazy.as_ref().is_some_and(|lazy| lazy.has(extent));
    let fresh = match lazy {
        None => FreshMemory::prepare(&plan, reader.index(), &mut built)?,
        Some(_) => FreshMemory::default(),
    };
    content::fill_processes(&reader, &plan, &built, &fresh, comes_later)?;
    fresh.end()?;
    phases.fill = lap.lap();
    let plan = &plan;
    let mut restored = Restored::of(plan, phases, std::mem::take(&mut open.connections));
    let given = &Cell::new(None);
    let complete = move |mut built: Built, let_go: LetGo<'_>| {
        layout::advise(plan, &mut built)?;
        files::install(plan, &open, &mut built)?;
        // In the background, the first read of a process would stop it.
        let give = || given.set(finish::hand_over_terminal(plan, options.terminal.as_ref()));
        finish::finish(plan, &open, built, &mut shared, || compared.cut_back().map(|()| give()), let_go)?;
        // The tree's alone once it runs: a pipe ends when the tree closes it.
        open.complete(shared);
        Ok(())
    };
    let has_begun = |restored: &mut Restored| {
        restored.foreground = given.get();
        restored.phases.finish = lap.lap();
        restored.total = started.elapsed();
        if let Some(running) = running {
            running(restored);
        }
    };
    match lazy {
        None => {
            complete(built, &mut |stub, signal| stub.detach(signal))?;
            has_begun(&mut restored);
        }
        Some(lazy) => {
            let complete = |built, post_restore_tracer: &mut PostRestoreTracer| {
                complete(built, &mut |stub, signal| post_restore_tracer.take(stub, signal))
            };
            lazy::run(lazy, &reader, built, complete, || has_begun(&mut restored))?;
        }
    }
    restored.filled = started.elapsed();
    Ok(restored)
}
