//! Restores an image: checks the records, builds the process tree, and resumes the tree.
//!
//! Owns: the order of the steps.
//! Invariants: the restore uses every record of the image. If no step would use a record, the restore is refused
//! before any process is created, and the error names the record. Processes under construction die with this
//! process. No process runs before all processes are complete.
//! Does not: depend on a kind; the steps call the registries of kinds.

mod apply;
mod built;
mod check;
mod compared;
mod content;
mod files;
mod finish;
mod fork_memory;
mod fresh;
mod hooks;
mod inherited;
mod inventory;
mod layout;
mod lazy;
mod pids;
mod plan;
mod segments;
mod tree;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::{Inode, Pid, Signal};
use resource::Shared;
use resource::fd::{Connections, Kept};
use resource::files::FileRecord;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use store::ImageReader;
use sys::clock::Stopwatch;
use tracee::{PostRestoreTracer, Roots, Stub};

use crate::error::{EngineError, Result};
pub use apply::{Applied, ApplyOptions, apply};
use built::Built;
use compared::Compared;
pub use compared::{Aside, FilePolicy, Files};
use files::OpenFiles;
use fresh::FreshMemory;
pub use hooks::{BeforeRun, Rollback};
use inherited::Inherited;
pub use inventory::{ImageDescriptor, ImageMapping, ImageProcess, Inventory, ProcessState, inventory};
use lazy::Lazy;
use plan::Plan;
pub use tree::FilterInstall;

/// Options of a restore.
#[derive(Debug, Default)]
pub struct RestoreOptions {
    /// Descriptors of this process that the subject may get back, each with the device and inode of its file.
    pub inherited: Vec<(u64, Inode, OwnedFd)>,
    /// Listening sockets that were kept open while the subject was dead. If the subject had such a listener at the
    /// checkpoint, the subject gets back the listener, with the connections in its queue.
    pub held: Vec<OwnedFd>,
    /// TCP connections to peers outside the subject that were kept open (`Taken::connections`). A connection comes
    /// back unchanged if the program has neither read from nor written to the connection since the checkpoint.
    pub kept: Kept,
    /// Program files, libraries and other mapped files that this process has kept open since the checkpoint
    /// (`Taken::mapped`). A restore finds such a file even if its name was removed or now leads to another file.
    pub mapped: Vec<Arc<OwnedFd>>,
    /// How the restore treats regular files that the subject can write.
    pub files: Files,
    /// Whether the subject has died in a crash. If true, the TCP connections of the subject are lost, except the
    /// connections in `kept`.
    pub connections_lost: bool,
    /// The controlling terminal of this process. The restore puts a process group of the subject into the
    /// foreground of this terminal. SIGTTOU must be blocked.
    pub terminal: Option<OwnedFd>,
    /// The seccomp filter that reports each file-changing system call of the tree; `None` for a tree that is not
    /// watched.
    pub watch: Option<FilterInstall>,
    /// Whether the program is restored although a clock of this machine is behind the time of the checkpoint. Timed
    /// waits then last longer.
    pub late_timers: bool,
    /// Whether the roots that were stopped at the checkpoint (SIGSTOP, SIGTSTP) run, with the stopped processes of their
    /// process groups. A program outside of the tree has continued them since, and does not know of the restore.
    pub continues: bool,
    /// A step that is called directly before the program runs.
    pub before_run: Option<BeforeRun>,
}

/// The result of a restore: a running tree.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// The root processes.
    pub roots: Roots,
    /// The pids of all processes, including zombies.
    pub pids: Vec<Pid>,
    /// The foreground process group of the tree. `None` if the root had no terminal or is not in the session of
    /// this process. If [`RestoreOptions::terminal`] was given, the restore has put this group into the foreground
    /// of the terminal.
    pub foreground: Option<Pid>,
    /// A time on CLOCK_MONOTONIC, after all zombies of the image had ended, and before the first thread was
    /// resumed.
    pub resumed_after: Duration,
    /// The time from the call of the restore to the first instruction of the tree.
    pub total: Duration,
    /// The time from the call of the restore until all memory was filled. A lazy restore fills some memory after
    /// the first instruction.
    pub filled: Duration,
    /// What happened to connections with peers outside the subject.
    pub connections: Connections,
    /// The durations of the steps.
    pub phases: RestorePhases,
}

impl Restored {
    /// Creates the result before the last steps of the restore. Sets `resumed_after` to the present time.
    fn of(plan: &Plan, phases: RestorePhases, connections: Connections) -> Self {
        let mut roots = plan.roots().iter().map(|root| root.pid);
        let roots = Roots::new(roots.next().unwrap_or_default(), roots);
        Self {
            roots,
            pids: plan.pids(),
            resumed_after: sys::clock::monotonic(),
            connections,
            phases,
            ..Self::default()
        }
    }
}

/// The durations of the steps of a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RestorePhases {
    /// Decoding and checking the records, waiting for pids to become free, comparing files.
    pub plan: Duration,
    /// Opening files and filling shared objects.
    pub open: Duration,
    /// Creating processes and their mappings.
    pub build: Duration,
    /// Filling the memory of the processes.
    pub fill: Duration,
    /// Restoring descriptors, threads, state and registers.
    pub finish: Duration,
}

/// The function that resumes a thread. If a signal is given, the thread receives the signal.
type ResumeStub<'a> = &'a mut dyn FnMut(Stub, Option<Signal>) -> std::result::Result<(), sys::Error>;

/// Decodes and checks the records of an image, like the first step of a restore. Opens and creates nothing.
///
/// # Errors
///
/// `Incomplete`, `UnknownRecord`, or the error of a kind that cannot decode its record.
pub fn check_records(records: image::RecordSet) -> Result<()> {
    Plan::read(records).map(drop)
}

/// Makes the checks of a restore on the records of a subject that is stopped and not yet killed: decodes the records,
/// compares the files, and looks for the files that the restore would open. Creates and changes nothing. The pids are
/// not checked, because the subject still has them. The subject was captured at `time`.
pub(crate) fn check_restorable(records: image::RecordSet, time: SystemTime) -> Result<()> {
    let plan = Plan::read(records)?;
    // A file to which another process appends is no reason against the restore. The restore cuts it back.
    let accept = Aside::new(|| Ok(()), |_, _, _, _| Ok(()));
    Compared::compare(&plan, time, Files { aside: Some(accept), ..Files::default() }, None)?;
    files::check(&plan)
}

/// Returns the regular files that an image has recorded.
///
/// # Errors
///
/// `FilesNotRecorded` for an image of an earlier version; `KernelDiffers`; the errors of `check_records`.
pub fn recorded_files(mut reader: ImageReader) -> Result<Vec<FileRecord>> {
    Plan::of(&mut reader)?.files.ok_or(EngineError::FilesNotRecorded)
}

/// An image whose records were decoded and checked. Nothing was opened, created or changed yet.
pub struct PreparedRestore {
    reader: ImageReader,
    plan: Plan,
    decoding: Duration,
}

impl PreparedRestore {
    /// Decodes and checks the records of an image.
    ///
    /// # Errors
    ///
    /// `KernelDiffers`; the errors of `check_records`.
    pub fn read(mut reader: ImageReader) -> Result<Self> {
        let started = Stopwatch::start();
        own_files_in_proc()?;
        let plan = Plan::of(&mut reader)?;
        Ok(Self { reader, plan, decoding: started.elapsed() })
    }

    /// Compares files with their records, like a restore before its first change.
    ///
    /// # Errors
    ///
    /// `FilesChanged` with every file that does not match; `FilesNotRecorded` for an image of an earlier version.
    pub fn compare_files(&self, files: Files) -> Result<()> {
        Compared::compare(&self.plan, self.reader.commit().time, files, None).map(drop)
    }

    /// Returns the regular files that the image has recorded. An image of an earlier version has none.
    #[must_use]
    pub fn recorded_files(&self) -> &[FileRecord] {
        self.plan.files.as_deref().unwrap_or_default()
    }

    /// Checks that the pids of the image are free, like a restore before its first change. The pids `reserved` are not
    /// checked.
    ///
    /// # Errors
    ///
    /// `PidTaken` or `PidUnreaped` with the first pid that is not free.
    pub fn check_pids(&self, reserved: &[Pid]) -> Result<()> {
        self.plan.check_pids(reserved)
    }

    /// Checks that the objects outside the tree exist that no rollback of files brings back: the terminals of the program.
    /// `inherited` are the files that this process may pass on, as in [`RestoreOptions`].
    ///
    /// # Errors
    ///
    /// The reason why the first missing object cannot be used.
    pub fn check_outside(&self, inherited: &[resource::fd::InheritedFile]) -> Result<()> {
        files::check_outside(&self.plan, inherited)
    }

    fn check_machine(&self, late_timers: bool) -> Result<()> {
        // If the program still runs, the comparison of files fails, too. The error about the pids shows the reason, so
        // it comes first.
        self.plan.check_pids(&[])?;
        if late_timers { Ok(()) } else { self.plan.check_clocks() }
    }

    /// Builds the tree of the image and resumes the tree.
    ///
    /// # Errors
    ///
    /// The reason why the tree does not run. Processes that were already created die with this process.
    pub fn restore(mut self, options: RestoreOptions) -> Result<Restored> {
        if options.continues {
            self.plan.continue_root_groups();
        }
        restore_with(self, options, None)
    }
}

/// Builds the tree of an image and resumes the tree.
///
/// # Errors
///
/// The reason why the tree does not run. Processes that were already created die with this process.
pub fn restore(reader: ImageReader, options: RestoreOptions) -> Result<Restored> {
    PreparedRestore::read(reader)?.restore(options)
}

/// Builds the tree of an image, and resumes the tree while its memory is still being filled. Pages that the tree
/// accesses are filled first. Calls `running` at the first instruction. Returns when all memory is filled and the
/// tree is no longer traced.
///
/// # Errors
///
/// The errors of `restore`. `LazyMissing`, before the first step, if this system lacks a necessary feature.
/// `LazyLost` if the restore failed after the tree had begun to run, and the tree was killed.
pub fn restore_lazily(
    reader: ImageReader,
    options: RestoreOptions,
    mut running: impl FnMut(&Restored),
) -> Result<Restored> {
    restore_with(PreparedRestore::read(reader)?, options, Some(&mut running))
}

/// Sets PR_SET_DUMPABLE (prctl(2)), so that the `/proc` files of this process and its children belong to the user
/// of this process. Without this call, the files belong to root if the program file has capabilities (setcap(8)).
/// Other processes of the user get no new rights: a tracer of this process still needs the same capabilities.
fn own_files_in_proc() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .map_err(|errno| sys::Error::new("make the own files in /proc accessible", errno).into())
}

fn given(options: &mut RestoreOptions) -> files::Given {
    files::Given {
        inherited: std::mem::take(&mut options.inherited),
        held: std::mem::take(&mut options.held),
        kept: std::mem::take(&mut options.kept),
        mapped: std::mem::take(&mut options.mapped),
        prefers_paths: options.files.policy == FilePolicy::Keep,
        covered: options.files.covered.clone(),
        connections_lost: options.connections_lost,
    }
}

/// Creates all processes and their mappings. With `shares`, fills the memory that the processes share.
fn build(
    (reader, plan, open): (&ImageReader, &Plan, &OpenFiles),
    watch: Option<FilterInstall>,
    shares: bool,
) -> Result<(Built, Inherited)> {
    let mut inherited = if shares { Inherited::choose(reader, plan) } else { Inherited::default() };
    let mut built = tree::build((reader, plan, open), watch, &mut inherited)?;
    layout::lay_out(plan, open, &inherited, &mut built)?;
    Ok((built, inherited))
}

fn restore_with(
    prepared: PreparedRestore,
    mut options: RestoreOptions,
    running: Option<&mut dyn FnMut(&Restored)>,
) -> Result<Restored> {
    let started = Stopwatch::start();
    let mut lap = started;
    let mut phases = RestorePhases::default();
    prepared.check_machine(options.late_timers)?;
    let PreparedRestore { reader, plan, decoding } = prepared;
    let given = given(&mut options);
    let rollback = options.files.rollback.take();
    let mut compared = Compared::compare(&plan, reader.commit().time, options.files, rollback.as_ref())?;
    phases.plan = decoding + lap.lap();
    let lazy = if running.is_some() { Lazy::prepare(&plan, reader.index())? } else { None };
    finish::prepare(&plan)?;
    let mut shared = Shared::default();
    let mut open = files::open(&plan, given, &mut shared, rollback)?;
    content::fill_objects(&reader, &plan, &mut open)?;
    phases.open = lap.lap();
    let (mut built, inherited) = build((&reader, &plan, &open), options.watch, lazy.is_none())?;
    phases.build = lap.lap();
    let comes_later = |extent: &_| lazy.as_ref().is_some_and(|lazy| lazy.has(extent));
    let fresh = match lazy {
        None => FreshMemory::prepare(&plan, reader.index(), &mut built)?,
        Some(_) => FreshMemory::default(),
    };
    content::fill_processes(&reader, &plan, &built, (&inherited, &fresh), comes_later)?;
    fresh.end()?;
    phases.fill = lap.lap();
    let (plan, given) = (&plan, &Cell::new(None));
    let mut restored = Restored::of(plan, phases, std::mem::take(&mut open.connections));
    let complete = move |mut built: Built, resume: ResumeStub<'_>| {
        layout::advise(plan, &mut built)?;
        files::install(plan, &open, &mut built)?;
        // Before the tree runs, because a read from the terminal stops a background process.
        let give = || given.set(finish::hand_over_terminal(plan, options.terminal.as_ref()));
        let cut_back = || compared.cut_back().map(|()| give());
        let before_run = || options.before_run.map_or(Ok(()), |step| Ok(step.call(plan.processes[0].pid)?));
        finish::finish(plan, &open, built, &mut shared, cut_back, before_run, resume)?;
        // Closes the descriptors of this process, so that only the tree holds them. Otherwise the reader of a pipe
        // would get no end of file when the tree closes the write end.
        open.complete(shared);
        Ok(())
    };
    let has_begun = |restored: &mut Restored| {
        restored.foreground = given.get();
        restored.phases.finish = lap.lap();
        restored.total = decoding + started.elapsed();
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
    restored.filled = decoding + started.elapsed();
    Ok(restored)
}
