//! The watch: detects file changes of a subject, and records the earlier state of files in the undo log.
//!
//! A subject is a protected process tree. A seccomp filter reports calls that can change names or attributes, and
//! fanotify(7) reports changes of content. The calling thread waits until the watch has recorded the earlier state, and
//! has answered through the listener of the filter. An epoch is the time between two successive checkpoints. A boundary
//! ends one epoch and begins the next epoch.
//!
//! Owns: the threads that answer the kernel before a change, and the state of the present epoch.
//! Invariants: a change is answered only after the log contains the earlier state. No answer waits for the end of a
//! checkpoint. After the death of this program, the kernel allows all waiting changes.
//! Does not: roll files back; `back` does.

mod answer;
mod boundaries;
mod boundary;
mod calls;
mod content;
mod costs;
mod crossing;
mod crossings;
mod descriptors;
mod epoch;
mod file_systems;
mod marks;
mod names;
mod paths;
mod rates;
mod state;
mod threads;
mod watched;
mod whole;

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use model::{ByteCount, Sequence};
use rustix::fs::OFlags;
use sys::clock::Clock;
use sys::features::{self, Feature};
use sys::listener_holder::ListenerHolder;
use sys::seccomp_listener::{self, FilterProgram, Listener, Reported};
use sys::socket_call::CallHandler;
use sys::watched_start::PendingListener;

use self::boundaries::Boundaries;
use self::costs::Costs;
use self::epoch::Armed;
use self::state::State;
use self::threads::{Fanotify, Shared, Source, answer_calls, answer_events};
use crate::back::{self, Conflicts, Durability, WentBack};
use crate::error::Result;
use crate::log::keep::KeepPlaces;
use crate::log::{UNWATCHED, UndoLog};

/// Options of a watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The directory of the log: `undo` below the directory of the subject.
    pub directory: PathBuf,
    /// Maximum size of the log in bytes (`--files-undo-max`).
    pub bytes_max: ByteCount,
    /// Maximum share of time that recording old content may take, 0.1 for a tenth (`--files-cost-max`).
    pub cost_max: f64,
    /// The checkpoint with the present state of files. The subject starts from this checkpoint; 0 means the beginning
    /// of the program.
    pub start: Sequence,
    /// The clock that measures the time between exact checkpoints.
    pub clock: Clock,
}

/// An open file description of the subject through which a regular file can be written. The capture of a checkpoint
/// passes these descriptions inside the pause.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile<'a> {
    /// A descriptor of this description, duplicated from the subject.
    pub file: BorrowedFd<'a>,
    /// The file status flags, for example O_APPEND.
    pub flags: u32,
    /// The file offset in bytes.
    pub position: Option<u64>,
    /// Whether the guardian was started with the description and passes it to the subject. The guardian is the process
    /// that supervises the subject.
    pub is_inherited: bool,
}

/// A file with a shared mapping that is writable or can become writable.
#[derive(Clone, Copy, Debug)]
pub struct MappedFile<'a> {
    /// Major and minor number of the device, as in /proc/PID/maps.
    pub device: (u32, u32),
    /// The inode number.
    pub inode: u64,
    /// The path of the file.
    pub path: &'a Path,
    /// Whether stores through the mapping are possible now. Otherwise stores are possible only after mprotect(2).
    pub is_writable: bool,
}

/// Whether a rollback to a checkpoint restores exactly the files of this checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// The rollback is exact.
    Exact,
    /// No exact rollback is possible, for this reason. The present epoch continues.
    Deferred(String),
}

/// The state of a watch for `undying status`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WatchReport {
    /// The reason if the present epoch is broken: no rollback is possible before the next exact checkpoint.
    pub broken: Option<String>,
    /// The reason for the last broken epoch, if an epoch was ever broken.
    pub last_break: Option<String>,
    /// Files that can change undetected. A rollback does not change these files.
    pub uncovered: Vec<PathBuf>,
    /// The newest exact checkpoint.
    pub newest_exact: Option<Sequence>,
    /// Size of the log in bytes.
    pub bytes: ByteCount,
    /// Share of the time in the present epoch that recording old content took.
    pub cost: f64,
    /// The minimum time between two exact checkpoints that results from the cost limit.
    pub apart: std::time::Duration,
}

/// A directory that is on a disk of nearly every machine.
const OTHER_PLACE: &str = "/var/tmp";

/// Watches one subject over all its incarnations. An incarnation lasts from one start or restore to the next death.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    holder: ListenerHolder,
    /// The file that the fd holder writes to if this program dies before the subject. The fd holder is a process with a
    /// copy of the listener. Because of this copy, calls of the subject do not fail after the death of this program.
    mark: File,
    options: WatchOptions,
    /// The handler for calls that name socket addresses.
    channels: Option<Arc<dyn CallHandler>>,
}

impl Watch {
    /// Returns the missing privilege or kernel feature if files cannot be watched on this machine.
    #[must_use]
    pub fn missing() -> Option<String> {
        [Feature::FileNotify, Feature::FileContent].into_iter().find_map(|feature| {
            let entry = features::entry(feature);
            if !features::enabled(feature) {
                return Some(format!("{} is forced off", entry.name()));
            }
            // One failed probe is not sufficient: some file systems have no events, for example tmpfs.
            let own = std::env::current_dir().ok();
            let places = own.into_iter().chain([std::env::temp_dir(), PathBuf::from(OTHER_PLACE)]);
            let mut failed = None;
            for place in places {
                match (entry.probe)(&place) {
                    Ok(_) => return None,
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            failed.map(|error| format!("{}: {error}", entry.name()))
        })
    }

    /// Creates a log, and starts the thread that answers content events. The caller started `holder` before this
    /// program had threads.
    ///
    /// # Errors
    ///
    /// The log or the source of events cannot be created.
    pub fn start(options: WatchOptions, holder: ListenerHolder) -> Result<Self> {
        let log = UndoLog::create(&options.directory, options.start, options.bytes_max)?;
        let mark = open_mark(&options.directory)?;
        let keep = KeepPlaces::new(&options.directory)?;
        let marks = Fanotify::new()?;
        let events = marks.events();
        let costs = Costs::new(options.clock.clone(), options.cost_max);
        let state = State::new(log, keep, Box::new(marks), options.start, costs);
        let shared = Arc::new(Shared::new(state, events));
        let threads = Arc::clone(&shared);
        spawn("undying-content", move || answer_events(&threads))?;
        Ok(Self { shared, holder, mark, options, channels: None })
    }

    /// Makes filters also report bind(2), listen(2) and connect(2) from the next incarnation on, for the handler
    /// `channels`. A bind(2) to a path is recorded before the handler receives the call. listen(2) and connect(2)
    /// change no file.
    #[must_use]
    pub fn with_channels(self, channels: Arc<dyn CallHandler>) -> Self {
        Self { channels: Some(channels), ..self }
    }

    /// Returns the filter for an incarnation of this subject that is being restored. The caller installs the filter
    /// with `seccomp_listener::flags_of`, and passes the listener to [`Self::attach`].
    ///
    /// With a handler for socket calls, the filter also reports these calls, and signals can interrupt all reported
    /// calls. A call that the handler holds must not prevent a checkpoint from stopping the thread.
    #[must_use]
    pub fn own_filter(&self) -> FilterProgram {
        match self.channels {
            Some(_) => seccomp_listener::filter_program(Reported::FilesAndChannels).interruptible(),
            None => Self::filter(),
        }
    }

    /// Returns the filter for an incarnation that is being restored, without reports of socket calls. The caller passes
    /// the listener to [`Self::attach`].
    #[must_use]
    pub fn filter() -> FilterProgram {
        seccomp_listener::watch_program()
    }

    /// Prepares a command, so that the program is watched from its first instruction.
    ///
    /// # Errors
    ///
    /// The filter cannot be prepared.
    pub fn prepare(&self, command: &mut Command) -> Result<PendingListener> {
        let program = self.own_filter();
        let held = Some((&self.holder, self.mark.as_fd()));
        Ok(sys::watched_start::watch_from_start(command, program, held)?)
    }

    /// Starts to answer the calls of a prepared command that has been started. The fd holder already has the listener.
    ///
    /// # Errors
    ///
    /// No listener was received, or no thread can be started. Calls of the program then wait, and the caller must kill
    /// the program.
    pub fn started(&self, pending: PendingListener) -> Result<()> {
        self.serve(pending.receive()?)
    }

    /// Starts to answer the calls of an incarnation that was restored.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::started`].
    pub fn attach(&self, listener: OwnedFd) -> Result<()> {
        self.holder.hold(listener.as_fd(), self.mark.as_fd())?;
        self.serve(Listener::new(listener)?)
    }

    fn serve(&self, listener: Listener) -> Result<()> {
        // Without synchronous wake-up, answers are slower but correct.
        let _ = listener.use_sync_wake_up();
        let buffer = self.holder.buffer().ok_or_else(|| {
            sys::Error::new("find a free buffer for calls of the subject", sys::Errno::ENOSPC)
        })?;
        // Restored threads run soon. From now on, every access that changes a file is a change by the subject.
        self.shared.state().is_restoring = false;
        let shared = Arc::clone(&self.shared);
        let (held, channels) = (self.holder.held_calls(), self.channels.clone());
        let source = Source { listener: Arc::new(listener), buffer, held, channels };
        spawn("undying-files", move || answer_calls(&shared, source))
    }

    /// Binds the state of files to a checkpoint. Runs inside the pause of this checkpoint, while all threads of the
    /// subject are stopped.
    pub fn boundary(&self, sequence: Sequence, open: &[OpenFile<'_>], mapped: &[MappedFile<'_>]) -> Boundary {
        self.shared.state().boundary(sequence, open, mapped)
    }

    /// Completes a boundary after the pause: removes unneeded marks, and prepares the file of the next epoch.
    pub fn after_pause(&self) {
        let mut state = self.shared.state();
        state.sweep();
        let prepared = state.log.prepare();
        state.or_break(prepared, "the next epoch");
    }

    /// Records the end of the subject. No process of the subject is left, and nothing is watched until
    /// [`Self::attach`].
    pub fn subject_ended(&self) {
        let mut state = self.shared.state();
        let now = self.options.clock.wall().into();
        let ended = state.log.ended(now);
        state.or_break(ended, "the time of the end");
    }

    /// Returns the checkpoints that a rollback can reach, in rising order.
    #[must_use]
    pub fn exact(&self) -> Vec<Sequence> {
        let state = self.shared.state();
        if state.epoch.broken.is_some() {
            return Vec::new();
        }
        // The files that were open at a checkpoint must be known as well.
        let known = |sequence: &Sequence| state.boundaries.has(*sequence);
        state.log.sequences().into_iter().filter(known).collect()
    }

    /// Rolls files back to a checkpoint after [`Self::subject_ended`], and begins a new epoch at this checkpoint. Does
    /// not change the content and attributes of files in `leave` (device and inode number). Until the next incarnation
    /// is attached, changes of files belong to the restore.
    ///
    /// # Errors
    ///
    /// The errors of `back::go_back`.
    pub fn go_back(&self, to: Sequence, leave: &[(u64, u64)]) -> Result<WentBack> {
        let mut state = self.shared.state();
        state.is_restoring = true;
        let went = back::go_back(&self.options.directory, to, Conflicts::Refuse, leave, Durability::Kill)?;
        state.log = UndoLog::open(&self.options.directory, self.options.bytes_max)?;
        state.begin_epoch();
        let armed = state.boundaries.go_back(to);
        let outcome = state.arm_again(&armed);
        state.or_break(outcome, "the files that were open at the checkpoint");
        state.epoch.is_touched = false;
        Ok(went)
    }

    /// Begins a new log. The present files become the initial state of a subject that starts from its beginning.
    ///
    /// # Errors
    ///
    /// The log cannot be created.
    pub fn start_over(&self, start: Sequence) -> Result<()> {
        let mut state = self.shared.state();
        state.log = UndoLog::create(&self.options.directory, start, self.options.bytes_max)?;
        state.begin_epoch();
        state.boundaries = Boundaries::starting_at(start);
        state.is_restoring = false;
        Ok(())
    }

    /// Retains only checkpoints in `kept` (in rising order) and newer checkpoints.
    pub fn retain(&self, kept: &[Sequence]) {
        let mut state = self.shared.state();
        let outcome = state.log.retain(kept);
        state.or_break(outcome, "older epochs");
        state.boundaries.retain(kept);
    }

    /// Returns the state of the watch for `undying status`.
    #[must_use]
    pub fn report(&self) -> WatchReport {
        let state = self.shared.state();
        WatchReport {
            broken: state.epoch.broken.clone(),
            last_break: state.last_break.clone(),
            uncovered: state.uncovered.clone(),
            newest_exact: state.boundaries.newest(),
            bytes: state.log.bytes(),
            cost: state.costs.share(),
            apart: state.costs.apart(),
        }
    }
}

impl State {
    /// Prepares for later changes of files that were open at a checkpoint which is being restored.
    fn arm_again(&mut self, list: &[Armed]) -> Result<()> {
        for armed in list {
            // A file that the rollback has created again has another inode. The restore refuses this file.
            if let Ok(file) = self.file_systems.open(&armed.key) {
                self.arm(armed, file.as_fd())?;
            }
        }
        // The restore opens files for the subject. The kernel must be able to report changes of these files.
        self.file_systems.enable_all(self.watched.source())
    }
}

/// Opens the file that contains data if the subject has run without being watched.
fn open_mark(directory: &Path) -> Result<File> {
    let path = directory.join(UNWATCHED);
    let mut options = OpenOptions::new();
    let opened = options
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(&path);
    Ok(opened.map_err(|error| sys::Error::path("open", &path, error))?)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|error| sys::Error::new("start a thread", error).into())
}
