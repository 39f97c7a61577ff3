//! Watching a subject change files.
//!
//! Owns: the threads that answer the kernel before a change, and what is kept of the present epoch.
//! Invariants: a change is answered only after the log has what was there before it; no answer waits for the pause; the
//! death of this program lets every change pass.
//! Does not: go back.

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

/// What a watch is told.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// Where the log is: `undo` below the directory of the subject.
    pub directory: PathBuf,
    /// Bytes that the log may take (`--files-undo-max`).
    pub bytes_max: ByteCount,
    /// Part of the time that keeping may cost, 0.1 for a tenth (`--files-cost-max`).
    pub cost_max: f64,
    /// The checkpoint whose files are those of now: the one that the subject starts from, 0 for its beginning.
    pub start: Sequence,
    /// Where the time is taken from that decides how far apart exact checkpoints are.
    pub clock: Clock,
}

/// A description of the subject that may write to a regular file, as the capture holds it inside the pause.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile<'a> {
    /// A duplicate of the description itself.
    pub file: BorrowedFd<'a>,
    /// Its file status flags (O_APPEND and the like).
    pub flags: u32,
    /// Its file offset.
    pub position: Option<u64>,
    /// The guardian was started with it and hands it on.
    pub is_inherited: bool,
}

/// A file behind a shared mapping that is, or can become, writable.
#[derive(Clone, Copy, Debug)]
pub struct MappedFile<'a> {
    /// Major and minor number of its device, as in /proc/PID/maps.
    pub device: (u32, u32),
    /// Its inode number.
    pub inode: u64,
    /// Its path.
    pub path: &'a Path,
    /// Stores through it are possible now; else only after mprotect(2).
    pub is_writable: bool,
}

/// Whether files can go back to a checkpoint exactly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// They can.
    Exact,
    /// They cannot, for this reason: the epoch goes on.
    Deferred(String),
}

/// What `status` says of the watch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WatchReport {
    /// Why the way back is lost since the last exact checkpoint, if it is.
    pub broken: Option<String>,
    /// Why the way back to earlier checkpoints was lost last, if it ever was.
    pub last_break: Option<String>,
    /// Files that can be changed without a trace: they do not go back.
    pub uncovered: Vec<PathBuf>,
    /// The newest checkpoint that files can go back to.
    pub newest_exact: Option<Sequence>,
    /// Bytes of the log.
    pub bytes: ByteCount,
    /// Part of the time of the last epoch that keeping took.
    pub cost: f64,
    /// The least time between two exact checkpoints, by the cost cap.
    pub apart: std::time::Duration,
}

/// A directory on a disk of nearly every machine.
const OTHER_PLACE: &str = "/var/tmp";

/// Watches one subject, incarnation after incarnation.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    holder: ListenerHolder,
    /// Where the holder notes that this program has died before the subject.
    mark: File,
    options: WatchOptions,
    /// Handles calls that name addresses of sockets.
    channels: Option<Arc<dyn CallHandler>>,
}

impl Watch {
    /// Why files cannot be watched here, if they cannot: privilege or kernel feature by name.
    #[must_use]
    pub fn missing() -> Option<String> {
        [Feature::FileNotify, Feature::FileContent].into_iter().find_map(|feature| {
            let entry = features::entry(feature);
            if !features::enabled(feature) {
                return Some(format!("{} is forced off", entry.name()));
            }
            // Some file systems have no events, a tmpfs among them; the subject may use others.
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

    /// Begins a log and the threads that answer. The holder was made before this program had threads.
    ///
    /// # Errors
    ///
    /// Why there is no log, or no source of events.
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

    /// Has the filters of this subject report bind(2), listen(2) and connect(2) to a handler from the next
    /// incarnation on. A bind(2) to a path is recorded before the handler sees it. The other two calls change no
    /// file.
    #[must_use]
    pub fn with_channels(self, channels: Arc<dyn CallHandler>) -> Self {
        Self { channels: Some(channels), ..self }
    }

    /// The filter of an incarnation of this subject that is being restored, whose listener is for `attach`. It reports
    /// channels if there is a handler. Its calls are interruptible then: a call that the handler holds must not keep a
    /// thread from being stopped for a checkpoint. Install it with `seccomp_listener::flags_of`.
    #[must_use]
    pub fn own_filter(&self) -> FilterProgram {
        match self.channels {
            Some(_) => seccomp_listener::filter_program(Reported::FilesAndChannels).interruptible(),
            None => Self::filter(),
        }
    }

    /// The filter of an incarnation that is being restored and has no channels, whose listener is for `attach`.
    #[must_use]
    pub fn filter() -> FilterProgram {
        seccomp_listener::watch_program()
    }

    /// Has a command be watched from its first instruction.
    ///
    /// # Errors
    ///
    /// Why its filter cannot be prepared.
    pub fn prepare(&self, command: &mut Command) -> Result<PendingListener> {
        let program = self.own_filter();
        let held = Some((&self.holder, self.mark.as_fd()));
        Ok(sys::watched_start::watch_from_start(command, program, held)?)
    }

    /// Answers the filter of a command that was prepared and started. The holder has its listener already.
    ///
    /// # Errors
    ///
    /// Why there is no listener, or no thread. The calls of the program then wait, so that it has to be ended.
    pub fn started(&self, pending: PendingListener) -> Result<()> {
        self.serve(pending.receive()?)
    }

    /// Answers the filter of an incarnation that was restored, from now on.
    ///
    /// # Errors
    ///
    /// As for `started`.
    pub fn attach(&self, listener: OwnedFd) -> Result<()> {
        self.holder.hold(listener.as_fd(), self.mark.as_fd())?;
        self.serve(Listener::new(listener)?)
    }

    fn serve(&self, listener: Listener) -> Result<()> {
        // Slower without it, and right.
        let _ = listener.use_sync_wake_up();
        let buffer = self.holder.buffer().ok_or_else(|| {
            sys::Error::new("find a free buffer for calls of the subject", sys::Errno::ENOSPC)
        })?;
        // From here on, what is done to files is a change: restored threads run soon.
        self.shared.state().is_restoring = false;
        let shared = Arc::clone(&self.shared);
        let (held, channels) = (self.holder.held_calls(), self.channels.clone());
        let source = Source { listener: Arc::new(listener), buffer, held, channels };
        spawn("undying-files", move || answer_calls(&shared, source))
    }

    /// The subject is stopped for this checkpoint: binds the state of files to it. Called inside the pause, after all
    /// threads are stopped and before any runs again.
    pub fn boundary(&self, sequence: Sequence, open: &[OpenFile<'_>], mapped: &[MappedFile<'_>]) -> Boundary {
        self.shared.state().boundary(sequence, open, mapped)
    }

    /// What need not be done inside the pause that has just ended.
    pub fn after_pause(&self) {
        let mut state = self.shared.state();
        state.sweep();
        let prepared = state.log.prepare();
        state.or_break(prepared, "the next epoch");
    }

    /// The subject has ended and no process of it is left. Nothing is watched until `attach`.
    pub fn subject_ended(&self) {
        let mut state = self.shared.state();
        let now = self.options.clock.wall().into();
        let ended = state.log.ended(now);
        state.or_break(ended, "the time of the end");
    }

    /// Checkpoints that files can go back to, in rising order.
    #[must_use]
    pub fn exact(&self) -> Vec<Sequence> {
        let state = self.shared.state();
        if state.epoch.broken.is_some() {
            return Vec::new();
        }
        // What was open at a checkpoint has to be known, too.
        let known = |sequence: &Sequence| state.boundaries.has(*sequence);
        state.log.sequences().into_iter().filter(known).collect()
    }

    /// Takes files back to a checkpoint after `subject_ended`, but for those of `leave` (device and inode), and begins a
    /// new epoch there. Until the next incarnation is attached, what is done to files belongs to the restore.
    ///
    /// # Errors
    ///
    /// As for `back::go_back`.
    pub fn go_back(&self, to: Sequence, leave: &[(u64, u64)]) -> Result<WentBack> {
        let mut state = self.shared.state();
        state.is_restoring = true;
        let went = back::go_back(&self.options.directory, to, Conflicts::Refuse, leave, Durability::Kill)?;
        state.log = UndoLog::open(&self.options.directory, self.options.bytes_max)?;
        state.begin_epoch();
        let armed = state.boundaries.go_back(to);
        let outcome = state.arm_again(&armed);
        state.or_break(outcome, "what was open at the checkpoint");
        state.epoch.is_touched = false;
        Ok(went)
    }

    /// The files as they are belong to a subject that starts from its beginning: the log begins anew.
    ///
    /// # Errors
    ///
    /// Why there is no log.
    pub fn start_over(&self, start: Sequence) -> Result<()> {
        let mut state = self.shared.state();
        state.log = UndoLog::create(&self.options.directory, start, self.options.bytes_max)?;
        state.begin_epoch();
        state.boundaries = Boundaries::starting_at(start);
        state.is_restoring = false;
        Ok(())
    }

    /// Only these checkpoints, in rising order, and newer ones are kept.
    pub fn retain(&self, kept: &[Sequence]) {
        let mut state = self.shared.state();
        let outcome = state.log.retain(kept);
        state.or_break(outcome, "older epochs");
        state.boundaries.retain(kept);
    }

    /// For `status`.
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
    /// Prepares for what can happen to files that were open at a checkpoint that is being restored.
    fn arm_again(&mut self, list: &[Armed]) -> Result<()> {
        for armed in list {
            // One that was made again has another inode, which the restore refuses.
            if let Ok(file) = self.file_systems.open(&armed.key) {
                self.arm(armed, file.as_fd())?;
            }
        }
        // The restore opens files for the subject: all of them have to be able to report.
        self.file_systems.enable_all(self.watched.source())
    }
}

/// The file that says, once it has content, that the subject has run without being watched.
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
