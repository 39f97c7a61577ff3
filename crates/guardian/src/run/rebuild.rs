//! Starts and restores a subject. A worker thread executes these steps, because the steps may block.
//!
//! The guard never blocks. The reaper knows which processes belong to a subject.
//!
//! Owns: the values that all subjects of this process share, and the choice of what a started program inherits. Also
//! owns the steps of a restart: ending the remaining processes, rolling files back, and building or starting processes.
//! Invariants: no process of the subject runs during the rollback of files. A dead root keeps its pid until the restore
//! needs the pid. A failed attempt leaves no process. Files are rolled back only to the checkpoint that is then
//! restored, and after all steps that can fail without a change of files.
//! Does not: decide which checkpoint is restored, or know the guard.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::{
    BeforeRun, Connections, Covered, FilePolicy, Files, FilterInstall, Kept, PreparedRestore, RestoreOptions,
    Restored,
};
use model::{Pid, ProcessKey, Sequence};
use store::{StorageService, Store, SubjectName};
use supervise::{ChangedFiles, RestoreError, Survey};
use sys::clock::Clock;
use sys::listener_holder::Creation;
use undo::watch::CallReports;

use super::blame;
use super::channels::ComponentChannels;
use super::child_stops::ChildStops;
use super::cost_meter::CostMeter;
use super::launch::Launch;
use super::leftovers::{Owner, ProcessReaper};
use super::mapped_files::MappedFiles;
use super::request::{Guarded, RunRequest};
use super::watching::{self, BEGINNING, FileWatch, Watching};
use crate::aside::Parts;
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::foreground::Foreground;
use crate::mark;
use crate::on_restore::{self, RestoredFrom, SignalSets};
use crate::streams::Streams;
use crate::subject::{Root, Subject};

/// Values that the event loop, its guards and its workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Assigns processes to subjects.
    pub(crate) reaper: ProcessReaper,
    /// Open files that this program was started with.
    pub(crate) streams: Arc<Streams>,
    /// The clock that decides what is due.
    pub(crate) clock: Clock,
    /// The page buffers, the threads and the order of the I/O of all logs.
    pub(crate) storage: StorageService,
    /// Measures what checkpoints cost the subjects.
    pub(crate) costs: CostMeter,
    /// Whether the kernel reports the stops of children.
    pub(crate) child_stops: Arc<ChildStops>,
    /// Signals that were already blocked at the start of this program, as a set of bits.
    pub(crate) blocked_before: u64,
    /// Signals whose actions are set to the default in programs that this process starts, as a set of bits.
    pub(crate) defaults: u64,
}

/// The terminal of the host, shared by the guard and the workers of a subject.
pub(super) type SharedForeground = Arc<Mutex<Foreground>>;

pub(super) fn lock(foreground: &Mutex<Foreground>) -> MutexGuard<'_, Foreground> {
    foreground.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A subject, and the values for a restore after its death.
#[derive(Clone)]
pub(super) struct Rebuild {
    pub(super) host: Arc<Shared>,
    /// Open files that the program shares with this process.
    pub(super) streams: Arc<Streams>,
    pub(super) launch: Launch,
    pub(super) store: Store,
    pub(super) name: SubjectName,
    /// The directory of the images and the status of the subject.
    pub(super) directory: PathBuf,
    /// The root process.
    pub(super) subject: Arc<Subject>,
    /// Identifies the subject to the reaper.
    pub(super) owner: Owner,
    /// What a restart does with files that have changed.
    pub(super) policy: ChangedFiles,
    /// The watch over the files of the subject.
    pub(super) file_watch: FileWatch,
    pub(super) foreground: SharedForeground,
    /// The mapped files that the checkpoints need.
    pub(super) mapped: MappedFiles,
}

/// A subject that runs again.
pub(super) struct Built {
    pub(super) subject: Subject,
    /// Time on CLOCK_MONOTONIC before which no process of the subject ran.
    pub(super) resumed_after: Duration,
    /// How many connections to outside processes stayed open, were rolled back, or ended.
    pub(super) connections: Connections,
}

/// The result of an attempt to start or restore a subject.
pub(super) struct Attempt {
    /// Events during the attempt.
    pub(super) events: Vec<RunEvent>,
    pub(super) outcome: std::result::Result<Built, (RestoreError, GuardianError)>,
}

impl Rebuild {
    /// Returns the watch that rolls files back.
    pub(super) fn watching(&self) -> Option<&Watching> {
        self.file_watch.watching()
    }

    /// Ends every process that the dead root has left, including the `known` processes of an adopted root.
    pub(super) fn clear(&self, known: &[ProcessKey], spared: &HashSet<ProcessKey>) -> Result<()> {
        self.host.reaper.clear(self.owner, self.subject.dead_pid(), known, spared)?;
        self.launch.channels.iter().for_each(ComponentChannels::died);
        self.note_end()
    }

    /// Records that no process of the subject is left. After a failed restore, processes may already have run and changed
    /// files, so the next rollback needs this record, too.
    fn note_end(&self) -> Result<()> {
        Ok(self.watching().map_or(Ok(()), |watching| watching.watch.subject_ended())?)
    }

    /// Lists the checkpoints of the subject. The checkpoints `in_flight` are still being written, and may become
    /// committed at any time.
    pub(super) fn survey(&self, in_flight: &[Sequence]) -> Result<Survey> {
        let found = self.store.list(&self.name)?;
        let committed: Vec<Sequence> = found.into_iter().map(|(sequence, _)| sequence).collect();
        let known: Vec<Sequence> = committed.iter().chain(in_flight).copied().collect();
        let unchanged_from = self.unchanged_from();
        Ok(Survey { committed, unchanged_from, ..self.survey_of(known) })
    }

    /// Returns the oldest checkpoint after which no file has changed.
    pub(super) fn unchanged_from(&self) -> Option<Sequence> {
        self.watching().and_then(|watching| watching.watch.unchanged_from())
    }

    /// Returns these checkpoints as committed, with the checkpoints to which files can be rolled back. Does not
    /// determine `unchanged_from`, which reads the attributes of all open files.
    pub(super) fn survey_of(&self, committed: Vec<Sequence>) -> Survey {
        let changes = self.file_watch.changes();
        let Some(watching) = self.watching() else {
            return Survey { committed, changes, ..Survey::default() };
        };
        let (exact, reaches_beginning) = (watching.exact(&committed), watching.reaches_beginning());
        let reached: Vec<Sequence> =
            reaches_beginning.then_some(BEGINNING).into_iter().chain(exact.iter().copied()).collect();
        Survey { committed, exact, reaches_beginning, told: watching.told(&reached), ..Survey::default() }
    }

    /// Rolls files back, and builds the processes of a checkpoint. `opened_later` are files that later checkpoints have
    /// recorded.
    ///
    /// Steps that can fail without a change of files come first. If a step fails after the rollback, the same
    /// checkpoint can be restored again.
    pub(super) fn restore(
        &self,
        sequence: Sequence,
        opened_later: &[PathBuf],
        spared: &HashSet<ProcessKey>,
        kept: &Kept,
    ) -> Attempt {
        let mut events = Vec::new();
        let outcome = self.prepare(sequence, spared).map_err(blamed).and_then(|prepared| {
            let covered = self.take_files_back(sequence, Some(&prepared), opened_later, &mut events);
            let covered = covered.map_err(|error| match blamed(error) {
                (RestoreError::FilesChanged, error) => (RestoreError::FilesStay, error),
                other => other,
            })?;
            let built = self.build(prepared, sequence, (opened_later, covered), kept, &mut events);
            if built.is_err() {
                self.host.reaper.clear_construction(self.owner, spared).map_err(blamed)?;
                self.note_end().map_err(blamed)?;
            }
            built.map_err(blamed)
        });
        Attempt { events, outcome }
    }

    /// Starts the program from its beginning. With `is_with_files`, rolls files back to the beginning before the start.
    pub(super) fn start(&self, words: &[OsString], requests: &str, is_with_files: bool) -> Attempt {
        let mut events = Vec::new();
        let built = self.begin_anew(words, requests, is_with_files, &mut events);
        Attempt { events, outcome: built.map_err(blamed) }
    }

    fn begin_anew(
        &self,
        words: &[OsString],
        requests: &str,
        is_with_files: bool,
        events: &mut Vec<RunEvent>,
    ) -> Result<Built> {
        self.host.reaper.clear(self.owner, self.subject.dead_pid(), &[], &HashSet::new())?;
        if is_with_files {
            self.take_files_back(BEGINNING, None, &[], events)?;
        } else {
            self.file_watch.start_over()?;
        }
        // The new root may have another pid, so the dead root is reaped now.
        self.subject.reap();
        self.launch.damaged.drop_all(events);
        let resumed_after = sys::clock::monotonic();
        let subject = self.spawn(words, requests)?;
        Ok(Built { subject, resumed_after, connections: Connections::default() })
    }

    /// Takes the steps of a restore that change no file.
    fn prepare(&self, sequence: Sequence, spared: &HashSet<ProcessKey>) -> Result<PreparedRestore> {
        self.host.reaper.clear(self.owner, self.subject.dead_pid(), &[], spared)?;
        self.file_watch.calls().map_or(Ok(()), CallReports::repair)?;
        self.launch.channels.as_ref().map_or(Ok(()), ComponentChannels::repair)?;
        let reader = self.store.read(&self.store.get(&self.name, sequence)?)?;
        let prepared = PreparedRestore::read(reader)?;
        // The dead roots keep their pids until the restore needs the pids.
        let reserved: Vec<Pid> = self.subject.roots().iter().collect();
        prepared.check_pids(&reserved)?;
        prepared.check_outside(&self.streams.duplicates()?)?;
        Ok(prepared)
    }

    /// Builds the tree of a checkpoint. `covered` are the files that were rolled back to the checkpoint.
    fn build(
        &self,
        prepared: PreparedRestore,
        sequence: Sequence,
        (opened_later, covered): (&[PathBuf], Covered),
        kept: &Kept,
        events: &mut Vec<RunEvent>,
    ) -> Result<Built> {
        let channels = self.launch.channels.as_ref();
        self.launch.damaged.drop_all(events);
        let parts = Parts::of_subject(&self.directory);
        let failure: Rc<OnceCell<String>> = Rc::default();
        let options = RestoreOptions {
            inherited: self.streams.duplicates()?,
            held: channels.map(ComponentChannels::kept).transpose()?.unwrap_or_default(),
            kept: kept.clone(),
            mapped: self.mapped.all(),
            files: self.files(&parts, opened_later, covered),
            connections_lost: true,
            terminal: lock(&self.foreground).offer(),
            watch: self.filter(),
            continues: true,
            before_run: self.before_run(sequence, &failure),
            ..RestoreOptions::default()
        };
        // The dead root has reserved its pid until this point. Now the restore needs the pid.
        self.subject.release()?;
        let outcome = prepared.restore(options);
        events.extend(parts.take().iter().map(RunEvent::moved_aside));
        events.extend(failure.get().map(|reason| RunEvent::OnRestoreFailed { reason: reason.clone() }));
        let restored = outcome?;
        events.extend(RunEvent::connections(sequence, &restored.connections));
        lock(&self.foreground).accepted(restored.foreground);
        if self.file_watch.calls().is_some() {
            channels.iter().for_each(|channels| channels.begin(true));
        }
        let subject = Subject::children(&restored.roots)?;
        let Restored { resumed_after, connections, .. } = restored;
        Ok(Built { subject, resumed_after, connections })
    }

    /// Returns the step that runs the command of `--on-restore`. The reason for its failure is written to `failure`.
    fn before_run(&self, sequence: Sequence, failure: &Rc<OnceCell<String>>) -> Option<BeforeRun> {
        let script = self.launch.on_restore.clone()?;
        let (host, failure) = (Arc::clone(&self.host), Rc::clone(failure));
        let (name, image) = (self.name.to_string(), format!("{}@{sequence}", self.name));
        // A component runs in a directory of its own.
        let restored_from = RestoredFrom { name, image, sequence, directory: self.launch.directory.clone() };
        Some(BeforeRun::new(move |root| {
            let sets = SignalSets { blocked: host.blocked_before, defaults: host.defaults };
            let create = |create: Creation<'_>| host.reaper.create_exempt(create);
            if let Some(reason) = on_restore::run(&script, (&restored_from, root), sets, create) {
                // The cell is empty, because the step is called at most once.
                let _ = failure.set(reason);
            }
            Ok(())
        }))
    }

    /// Rolls files back to a checkpoint that could not be restored, if this is possible.
    pub(super) fn leave_files_at(&self, sequence: Sequence) -> Vec<RunEvent> {
        let mut events = Vec::new();
        // An error has the same cause as the failed restore, which is reported already. `undying restore` continues the
        // rollback.
        let _ = self.take_files_back(sequence, None, &[], &mut events);
        events
    }

    /// Rolls files back, if files are watched. The restore compares the files that were not rolled back.
    fn take_files_back(
        &self,
        to: Sequence,
        prepared: Option<&PreparedRestore>,
        opened_later: &[PathBuf],
        events: &mut Vec<RunEvent>,
    ) -> Result<Covered> {
        let Some(watching) = self.watching() else { return Ok(Covered::Nothing) };
        let (leave, of_others) = self.streams.that_stay();
        if let Some(prepared) = prepared {
            self.compare_uncovered(watching, prepared, opened_later)?;
            watching.watch.check_opened(
                to,
                &leave,
                resource::files::of_program(prepared.recorded_files()),
            )?;
        }
        let (went, covered) = watching.go_back(to, &leave)?;
        events.push(RunEvent::went_back(to, &went, of_others));
        Ok(covered)
    }

    /// Refuses the rollback if a file that cannot be rolled back has changed. Must be called before the first file is
    /// rolled back.
    fn compare_uncovered(
        &self,
        watching: &Watching,
        prepared: &PreparedRestore,
        opened_later: &[PathBuf],
    ) -> Result<()> {
        let uncovered = watching.watch.report().uncovered;
        let named = uncovered.iter().filter_map(|path| rustix::fs::stat(path).ok());
        let named: HashSet<(u64, u64)> = named.map(|stat| (stat.st_dev, stat.st_ino)).collect();
        if named.is_empty() {
            return Ok(());
        }
        let parts = Parts::of_subject(&self.directory);
        Ok(prepared.compare_files(self.files(&parts, opened_later, Covered::AllBut(named)))?)
    }

    /// Refuses a checkpoint of the living subject whose restore would refuse the present files.
    pub(super) fn check_files(&self, prepared: &PreparedRestore) -> Result<()> {
        match self.watching() {
            Some(watching) => self.compare_uncovered(watching, prepared, &[]),
            None => {
                let parts = Parts::of_subject(&self.directory);
                Ok(prepared.compare_files(self.files(&parts, &[], Covered::Nothing))?)
            }
        }
    }

    /// Returns how the restore treats the files that were not rolled back.
    fn files(&self, parts: &Parts, opened_later: &[PathBuf], covered: Covered) -> Files {
        let policy = match self.policy {
            ChangedFiles::Rewind | ChangedFiles::Trim => FilePolicy::Compare,
            ChangedFiles::Fresh | ChangedFiles::Refuse => FilePolicy::Unchanged,
            ChangedFiles::Append => FilePolicy::Append,
            ChangedFiles::Keep => FilePolicy::Keep,
        };
        let opened_later = opened_later.to_vec();
        Files { policy, aside: Some(parts.keeping()), opened_later, covered, ..Files::default() }
    }
}

impl Rebuild {
    /// Returns the seccomp filter of a tree that is restored, if the tree needs a filter.
    fn filter(&self) -> Option<FilterInstall> {
        let channels = || self.launch.channels.as_ref().map(ComponentChannels::filter);
        self.file_watch.calls().map(watching::filter).or_else(channels)
    }

    fn spawn(&self, words: &[OsString], requests: &str) -> Result<Subject> {
        let (launch, log, calls) = (&self.launch, self.streams.log(), self.file_watch.calls());
        spawn(words, &self.host, (launch, log), requests, Incarnation::New(calls)).map(Subject::from)
    }

    /// Starts a program that joins the living subject, or takes over its running process. Returns its root, and the
    /// streams if the program has a log of its own.
    pub(super) fn join(&self, request: &RunRequest, requests: &str) -> Result<(Root, Option<Streams>)> {
        let log = request.launch.open_log()?;
        let streams = log.as_ref().map(|log| self.streams.with_member_log(log)).transpose()?;
        if let Some(running) = request.runs_already {
            let root = Root::stranger(running.pid)?;
            if root.key() != running {
                return Err(engine::EngineError::NoProcess(running.pid).into());
            }
            return Ok((root, streams));
        }
        let Guarded::Command(words) = &request.what else { return Err(no_command()) };
        let of_subject = Incarnation::Present(self.file_watch.calls());
        let root = spawn(words, &self.host, (&request.launch, log.as_ref()), requests, of_subject)?;
        Ok((root, streams))
    }
}

fn blamed(error: GuardianError) -> (RestoreError, GuardianError) {
    (blame::of(&error), error)
}

/// The incarnation to which a started program belongs, with the file watch of the subject.
#[derive(Clone, Copy)]
pub(super) enum Incarnation<'a> {
    /// A new incarnation, which begins with this program.
    New(Option<&'a CallReports>),
    /// The present incarnation, which the program joins.
    Present(Option<&'a CallReports>),
}

/// Starts the program as a child. The environment of the child contains the name of the socket for requests. The child
/// inherits streams, environment, directory, process group, signal mask and signal actions.
pub(super) fn spawn(
    words: &[OsString],
    host: &Shared,
    (launch, log): (&Launch, Option<&OwnedFd>),
    requests: &str,
    incarnation: Incarnation<'_>,
) -> Result<Root> {
    let (program, arguments) = words.split_first().ok_or_else(no_command)?;
    let mut command = Command::new(program);
    command.env(mark::VARIABLE, requests);
    let defaults = host.defaults | launch.default_signals();
    sys::signal::start_with(command.args(arguments), host.blocked_before, defaults);
    sys::descriptor_table::start_with_first_limit(&mut command);
    launch.prepare(&mut command, log)?;
    let failed = |error: std::io::Error| {
        let source = sys::Error::path("execute", Path::new(program), error);
        GuardianError::Command { command: program.clone(), source }
    };
    let (calls, joins) = match incarnation {
        Incarnation::New(calls) => (calls, false),
        Incarnation::Present(calls) => (calls, true),
    };
    match (calls, &launch.channels) {
        (Some(calls), channels) => {
            channels.iter().filter(|_| !joins).for_each(|channels| channels.begin(false));
            Root::child(watching::spawn((calls, joins), &mut command, launch, failed)?)
        }
        (None, Some(channels)) => {
            let prepare = |command: &mut Command| launch.prepare_user(command);
            Root::child(Pid(channels.spawn(&mut command, joins, prepare, failed)?.id() as i32))
        }
        (None, None) => {
            launch.prepare_user(&mut command)?;
            Root::child(Pid(command.spawn().map_err(failed)?.id() as i32))
        }
    }
}

fn no_command() -> GuardianError {
    GuardianError::Command {
        command: OsString::new(),
        source: sys::Error::new("execute an empty command", sys::Errno::ENOENT),
    }
}
