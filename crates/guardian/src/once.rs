//! Takes one checkpoint or makes one restore, for the commands `checkpoint` and `restore`. After a restore, this
//! process can stay as the parent of the restored tree.
//!
//! Owns: where an image is written, and the duties of the parent. The parent passes signals on to the root, and exits
//! with the exit status of the root.
//! Does not: restart a tree; `run` does.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use engine::{BeforeRun, CheckpointOptions, Covered, FilePolicy, Files, RestoreOptions, Restored, Rollback};
use model::{ByteCount, PageCount, Pid, Sequence};
use rustix::event::{PollFd, PollFlags, poll};
use store::{Codec, ImageWriter, WriteOptions};
use supervise::SubjectStatus;
use sys::Error;

use crate::ancestry;
use crate::aside::Parts;
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::foreground::Foreground;
use crate::inspection::{require_features, require_restorable};
use crate::location::StoreLocation;
use crate::on_restore::{self, RestoredFrom, SignalSets};
use crate::pidfile::PidFile;
use crate::signals::{self, Arrived, CONT, Request, Signals};
use crate::streams::Streams;
use crate::subject::Subject;
use crate::undoing::{Going, Planned, RestoredFiles, checkpoint_of_files, claim_of, of_living};

/// The request of `checkpoint`.
#[derive(Clone, Debug)]
pub struct CheckpointRequest {
    /// Pid of the root of the tree.
    pub pid: Pid,
    /// The directory that becomes the image.
    pub image: PathBuf,
    /// Whether the tree is ended after the image is committed.
    pub kill: bool,
    /// Whether the checkpoint is taken although a restore may lose connections to processes outside of the tree.
    pub lose_connections: bool,
    /// The codec that compresses the pages. `None` writes the pages uncompressed.
    pub compression: Option<&'static dyn Codec>,
}

/// The result of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpointed {
    /// The pause: how long the subject was stopped.
    pub pause: Duration,
    /// Time from the first scan until the image was durable.
    pub total: Duration,
    /// Number of pages in the image.
    pub pages: PageCount,
    /// Size of the image in bytes.
    pub bytes: ByteCount,
}

/// Takes one checkpoint of a process tree.
///
/// # Errors
///
/// The engine refuses the checkpoint, or the store fails. In both cases, the tree continues.
pub fn checkpoint(request: &CheckpointRequest) -> Result<Checkpointed> {
    require_features()?;
    require_restorable()?;
    signals::outlive_failed_writes()?;
    ancestry::refuse(request.pid)?;
    require_parent(&request.image)?;
    let write = WriteOptions { codec: request.compression, ..WriteOptions::default() };
    let writer = ImageWriter::create(&request.image, write)?;
    let options = CheckpointOptions {
        kill: request.kill,
        lose_connections: request.lose_connections,
        name: String::new(),
        sequence: Sequence(1),
        inherited: Streams::standard()?.identities(),
        ..CheckpointOptions::default()
    };
    let report =
        engine::checkpoint(request.pid, Box::new(writer), &options).map_err(ancestry::name_guardian_in)?;
    Ok(Checkpointed {
        pause: report.commit.timings.pause,
        total: report.total,
        pages: report.commit.pages,
        bytes: report.commit.bytes,
    })
}

/// Refuses an image whose parent directory does not exist. The directory is not created, because its name may be
/// misspelt. The operator also has to choose the owner and the mode of the directory.
fn require_parent(image: &Path) -> Result<()> {
    let is_missing = |parent: &&Path| !parent.as_os_str().is_empty() && !parent.exists();
    let missing = image.parent().filter(is_missing).map(Path::to_path_buf);
    missing.map_or(Ok(()), |parent| Err(GuardianError::NoParent { image: image.to_path_buf(), parent }))
}

/// The request of `restore`.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// The image: a directory, NAME or NAME@SEQ.
    pub image: String,
    /// The store in which names are resolved.
    pub store: StoreLocation,
    /// What happens when regular files have changed since the checkpoint.
    pub files: RestoredFiles,
    /// Whether the tree runs while its memory is still being filled.
    pub lazy: bool,
    /// Whether the program is restored although a clock of this machine is behind the time of the checkpoint.
    pub late_timers: bool,
    /// Whether all TCP connections to outside processes are lost, even connections that a peer may still keep open.
    pub lose_connections: bool,
    /// Whether the call returns as soon as the tree runs. Otherwise, this process stays as the parent of the tree.
    pub detach: bool,
    /// A file to which the pid of the root is written.
    pub pidfile: Option<PathBuf>,
    /// A shell command that runs before the restored program goes on.
    pub on_restore: Option<OsString>,
}

/// The result of a restore.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// Pid of the root.
    pub root: Pid,
    /// Number of processes.
    pub processes: usize,
    /// Time from the call to the first instruction of the tree.
    pub total: Duration,
    /// Time from the call until all memory was filled.
    pub filled: Duration,
    /// How the root ended, if the caller stayed as the parent.
    pub status: Option<SubjectStatus>,
}

/// Restores an image.
///
/// # Errors
///
/// The reason why the image could not be restored. If the tree runs already, an error is `PidFileLost`, or means that the
/// tree cannot be watched.
pub fn restore(request: &RestoreRequest, on_event: &mut dyn FnMut(&RunEvent)) -> Result<Resumed> {
    let streams = Streams::inherited()?;
    require_features()?;
    let claim = claim_of(&request.store, &request.image)?;
    let of_files = checkpoint_of_files(&request.store, &request.image, request.files)?
        .map(|(image, event)| (RestoreRequest { image, ..request.clone() }, event));
    let request = of_files.as_ref().map_or(request, |(request, event)| {
        on_event(event);
        request
    });
    let reader = request.store.read(&request.image)?;
    let sequence = reader.commit().sequence;
    let mut pidfile = request.pidfile.as_deref().map(PidFile::prepare).transpose()?;
    // Signals are blocked before a process is created. Otherwise a signal could end this process before this process
    // takes care of the tree.
    let signals = if request.detach { None } else { Some(Signals::take()?) };
    let mut foreground = Foreground::new();
    let parts = request.store.parts_of(&request.image)?;
    let going = Going::decide(&request.store, &request.image, request.files)?;
    let (rollback, covered, done) = plan_rollback(request, going.as_ref(), &parts)?;
    let failure: Rc<OnceCell<String>> = Rc::default();
    let options = RestoreOptions {
        inherited: streams.duplicates()?,
        files: files_of(request, &parts, covered, rollback),
        connections_lost: request.lose_connections,
        // With `detach`, the program does not get the terminal, because the program outlives this process and would
        // keep the terminal.
        terminal: signals.as_ref().and_then(|_| foreground.offer()),
        late_timers: request.late_timers,
        before_run: Some(before_run(request, going.as_ref(), signals.as_ref(), &failure)?),
        ..RestoreOptions::default()
    };
    let mut written = Ok(());
    let mut running = |restored: &Restored| {
        done.get().into_iter().for_each(&mut *on_event);
        let of_files = report_of_files(request.files, &parts);
        let of_connections = RunEvent::connections(sequence, &restored.connections);
        of_files.iter().chain(&of_connections).for_each(&mut *on_event);
        if let Some(reason) = failure.get() {
            on_event(&RunEvent::OnRestoreFailed { reason: reason.clone() });
        }
        if let Some(pidfile) = pidfile.take() {
            written = pidfile.write(restored.roots.first());
        }
    };
    let outcome = if request.lazy {
        engine::restore_lazily(reader, options, &mut running)
    } else {
        engine::restore(reader, options).inspect(running)
    };
    let restored = outcome.map_err(|error| failed(request, going.as_ref(), done.get().is_some(), error))?;
    drop((going, claim));
    written?;
    if signals.is_none() {
        foreground.left_to_the_shell();
    }
    foreground.accepted(restored.foreground);
    foreground.draw_again();
    let subject = Subject::children(&restored.roots)?;
    let status = signals.map(|signals| stay(&signals, &subject, &mut foreground)).transpose()?;
    foreground.take_back(status);
    let Restored { roots, pids, total, filled, .. } = restored;
    Ok(Resumed { root: roots.first(), processes: pids.len(), total, filled, status })
}

/// Checks the rollback of files, if the restore rolls files back. Returns the rollback, the files that need no
/// comparison, and the cell that receives the event of the rollback.
fn plan_rollback(
    request: &RestoreRequest,
    going: Option<&Going>,
    parts: &Parts,
) -> Result<(Option<Rollback>, Covered, Rc<OnceCell<RunEvent>>)> {
    let recorded = || Ok(engine::recorded_files(request.store.read(&request.image)?)?);
    match going.map(|going| going.plan(recorded, parts)).transpose()?.flatten() {
        Some(Planned { covered, rollback, done }) => Ok((Some(rollback), covered, done)),
        None => Ok((None, Covered::Nothing, Rc::default())),
    }
}

/// Returns how the restore treats files that the program has changed.
fn files_of(request: &RestoreRequest, parts: &Parts, covered: Covered, rollback: Option<Rollback>) -> Files {
    let keeps = request.files == RestoredFiles::Keep;
    let policy = if keeps { FilePolicy::Keep } else { FilePolicy::Compare };
    Files { policy, aside: Some(parts.keeping()), covered, rollback, ..Files::default() }
}

/// Returns the steps directly before the program runs: the record in the undo log, and the command of `--on-restore`. The
/// reason for a failure of the command is written to `failure`.
fn before_run(
    request: &RestoreRequest,
    going: Option<&Going>,
    signals: Option<&Signals>,
    failure: &Rc<OnceCell<String>>,
) -> Result<BeforeRun> {
    let record = going.map(Going::before_run);
    let sequence = request.store.read(&request.image)?.commit().sequence;
    let name = request.store.subject_of(&request.image)?.map(|(_, name)| name.to_string());
    let image = name.as_ref().map_or_else(|| request.image.clone(), |name| format!("{name}@{sequence}"));
    let restored_from = RestoredFrom { name: name.unwrap_or_default(), image, sequence, directory: None };
    let sets = signals.map_or_else(SignalSets::default, |signals| SignalSets {
        blocked: signals.blocked_before,
        defaults: signals.defaults,
    });
    let (command, failure) = (request.on_restore.clone(), Rc::clone(failure));
    Ok(BeforeRun::new(move |root| {
        record.map_or(Ok(()), |record| record())?;
        let run = |script| on_restore::run(&script, (&restored_from, root), sets, |create| create());
        if let Some(reason) = command.and_then(run) {
            // The cell is empty, because the step is called at most once.
            let _ = failure.set(reason);
        }
        Ok(())
    }))
}

/// Returns the error of a failed restore. If files were rolled back before, the error states this.
fn failed(
    request: &RestoreRequest,
    going: Option<&Going>,
    is_rolled_back: bool,
    error: engine::EngineError,
) -> GuardianError {
    match going.filter(|_| is_rolled_back) {
        Some(going) => GuardianError::AfterRollback { to: going.to, source: Box::new(error.into()) },
        None => of_living(&request.store, &request.image, error),
    }
}

/// Returns the events about files that a restore has not rolled back, and about parts of files that it has moved aside.
fn report_of_files(files: RestoredFiles, parts: &Parts) -> Vec<RunEvent> {
    let is_compared = files == RestoredFiles::Refuse;
    let stays = is_compared || files == RestoredFiles::Keep;
    let not_rolled_back = stays.then_some(RunEvent::FilesNotRolledBack { is_compared });
    not_rolled_back.into_iter().chain(parts.take().iter().map(RunEvent::moved_aside)).collect()
}

/// Passes signals on to the subject until the subject ends. Returns how the subject has ended.
fn stay(signals: &Signals, subject: &Subject, foreground: &mut Foreground) -> Result<SubjectStatus> {
    loop {
        let living: Vec<_> = subject
            .handles()
            .filter(|(pid, _)| subject.root(*pid).is_some_and(|root| !root.has_ended()))
            .collect();
        // A root that has ended is not waited for, so its end must be seen before the wait.
        if let Some(status) = subject.over()? {
            subject.release()?;
            return Ok(status);
        }
        let living = living.into_iter().map(|(_, handle)| handle);
        let handles = std::iter::once(signals.handle()).chain(living);
        let mut waiting: Vec<_> =
            handles.map(|handle| PollFd::from_borrowed_fd(handle, PollFlags::IN)).collect();
        rustix::io::retry_on_intr(|| poll(&mut waiting, None))
            .map_err(|errno| Error::process("watch", subject.pid(), errno))?;
        let signalled = !waiting[0].revents().is_empty();
        while signalled && let Some(arrived) = signals.poll()? {
            match arrived {
                Arrived::Request(request) => hand_on(request, subject)?,
                Arrived::Stop { from_terminal: true, stop, .. } if signals::shares_group(subject.pid()) => {
                    stop.take_effect()?;
                }
                Arrived::Stop { signal, stop, .. } => {
                    subject.signal(signal)?;
                    stop.take_effect()?;
                    subject.signal(CONT)?;
                }
            }
        }
        foreground.follow_stop(subject)?;
    }
}

/// After a hangup of the terminal, the subject gets this time to end by itself. A program that reads from the terminal
/// sees its end. A SIGHUP while such a program saves its data would end it at once (Emacs).
const HANGUP_WAIT: Duration = Duration::from_millis(500);

/// Passes a signal that this process has received on to the subject.
pub(crate) fn hand_on(request: Request, subject: &Subject) -> Result<()> {
    match request {
        Request::Child => Ok(()),
        Request::PassOn(signal) => subject.signal(signal),
        Request::End { is_of_group: true, .. } if signals::shares_group(subject.pid()) => Ok(()),
        Request::End { signal, from_terminal: true, .. } if signal == signals::HUP => {
            subject.ask_to_end_after(HANGUP_WAIT, signal)
        }
        Request::End { signal, .. } => subject.ask_to_end(signal),
    }
}
