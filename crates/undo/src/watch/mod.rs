//! The watch: detects file changes of a subject, and records the earlier state of files in the undo log.
//!
//! The kernel reports a change to the watch before the change happens. A seccomp filter reports system calls that can
//! change names, attributes or content. fanotify(7) reports an event when file content is about to be read, written or
//! mapped. The thread of the subject waits until the watch has recorded the earlier state and has answered. The watch
//! receives and answers system calls through the *listener*, a descriptor of the filter.
//!
//! If no file has changed in the present epoch, the epoch continues after a checkpoint.
//!
//! Owns: the threads that answer calls and events, and the state of the present epoch.
//! Invariants: the watch answers a call or an event only after the log contains the earlier state, or the epoch is
//! broken. No answer waits for the end of a checkpoint. After the death of this program, all waiting threads of the
//! subject continue.
//! Does not: roll files back; `back` does.

mod answer;
mod boundaries;
mod boundary;
mod callers;
mod calls;
mod content;
mod costs;
mod crossing;
mod crossings;
mod descriptors;
mod durable;
mod epoch;
mod file_systems;
mod join;
mod joins;
mod mapped;
mod marks;
mod names;
mod notice;
mod own_lines;
mod paths;
mod permission;
mod rates;
mod refused;
mod reports;
mod state;
mod tender;
mod threads;
mod tracked;
mod watched;
mod whole;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::{ByteCount, Sequence};
use rustix::fs::{Mode, OFlags};
use sys::clock::{self, Clock, Deadline};
use sys::features::{self, Feature};
use sys::listener_holder::ListenerHolder;
use sys::socket_call::CallHandler;

use self::boundaries::Boundaries;
use self::callers::Callers;
use self::costs::Costs;
use self::descriptors::{key_of, stat};
use self::epoch::Armed;
use self::paths::PATH_ONLY;
use self::state::State;
use self::threads::{Fanotify, Recipient, Shared, answer_events, spawn};
use crate::back::{self, Conflicts, Durability, WentBack};
use crate::error::{Result, UndoError};
use crate::log::UndoLog;
use crate::log::keep::KeepPlaces;

pub use self::notice::Notice;
pub use self::own_lines::OwnLines;
pub use self::reports::CallReports;

/// Maximum length of a tick of the kernel, with a margin. Times of changes advance with the ticks.
const TICK_MAX: Duration = Duration::from_millis(20);
const TICK_PART: Duration = Duration::from_micros(500);

/// Options of a watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The directory of the log: `undo` below the directory of the subject.
    pub directory: PathBuf,
    /// Maximum size of the log in bytes (`--files-undo-max`).
    pub bytes_max: ByteCount,
    /// The maximum share of the elapsed time for recording old content; 0.1 means a tenth (`--files-cost-max`).
    pub cost_max: f64,
    /// The maximum time between two exact checkpoints that `cost_max` can cause.
    pub apart_max: Duration,
    /// The checkpoint from which the subject starts, and whose file state is the present state; 0 means the beginning
    /// of the program.
    pub start: Sequence,
    /// The clock that measures the length of an epoch and the cost of recording.
    pub clock: Clock,
}

/// An open file description through which the subject can write to a file. The capture of a checkpoint passes a list of
/// these descriptions to [`Watch::boundary`].
#[derive(Clone, Copy, Debug)]
pub struct OpenFile<'a> {
    /// A duplicate of the subject's descriptor of this description.
    pub file: BorrowedFd<'a>,
    /// The file status flags, for example O_APPEND.
    pub flags: u32,
    /// The file offset in bytes.
    pub position: Option<u64>,
    /// Whether the guardian has inherited the description at its own start and has passed the description to the
    /// subject.
    pub is_inherited: bool,
}

/// A file with a shared mapping. The mapping is writable, or mprotect(2) can make the mapping writable.
#[derive(Clone, Copy, Debug)]
pub struct MappedFile<'a> {
    /// Major and minor number of the device, as in /proc/PID/maps.
    pub device: (u32, u32),
    /// The inode number.
    pub inode: u64,
    /// The path of the file.
    pub path: &'a Path,
    /// Whether the mapping is writable now.
    pub is_writable: bool,
}

/// The result of [`Watch::boundary`] for a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// The checkpoint is exact: a rollback can restore exactly the files of the checkpoint.
    Exact,
    /// The checkpoint is not exact, for this reason. The present epoch continues.
    Deferred(String),
}

/// The state of a watch for `undying status`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WatchReport {
    /// The reason why the present epoch is broken; `None` if the epoch is not broken. A broken epoch ends at the next
    /// exact checkpoint. Until this checkpoint, no rollback is possible.
    pub broken: Option<String>,
    /// The reason why the last broken epoch was broken; `None` if no epoch was ever broken.
    pub last_break: Option<String>,
    /// Files that can change undetected. A rollback does not change these files.
    pub uncovered: Vec<PathBuf>,
    /// The newest exact checkpoint.
    pub newest_exact: Option<Sequence>,
    /// Size of the log in bytes.
    pub bytes: ByteCount,
    /// The share of the present epoch that was spent on recording old content.
    pub cost: f64,
    /// The minimum length of an epoch that keeps the cost within [`WatchOptions::cost_max`].
    pub apart: Duration,
}

/// A watch that binds the state of files to checkpoints.
pub trait CheckpointWatch: fmt::Debug + Send + Sync {
    /// Records that the present state of files is the state at checkpoint `sequence`. The caller calls this method
    /// inside the pause of the checkpoint, while all threads of the subject are stopped. Returns `None` if the watch
    /// does not roll files back.
    fn boundary(
        &self,
        sequence: Sequence,
        open: &[OpenFile<'_>],
        mapped: &[MappedFile<'_>],
    ) -> Option<Boundary>;

    /// Completes a boundary after the pause.
    fn after_pause(&self);
}

impl CheckpointWatch for Watch {
    fn boundary(
        &self,
        sequence: Sequence,
        open: &[OpenFile<'_>],
        mapped: &[MappedFile<'_>],
    ) -> Option<Boundary> {
        Some(self.boundary(sequence, open, mapped))
    }

    fn after_pause(&self) {
        self.after_pause();
    }
}

impl CheckpointWatch for Notice {
    fn boundary(&self, sequence: Sequence, _: &[OpenFile<'_>], _: &[MappedFile<'_>]) -> Option<Boundary> {
        self.boundary(sequence);
        None
    }

    fn after_pause(&self) {}
}

/// A directory that is on a disk on nearly every machine.
const OTHER_PLACE: &str = "/var/tmp";

/// Watches one subject over all its incarnations.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    calls: CallReports,
    options: WatchOptions,
    /// Files that the subject shares with this program, and to which this program writes messages.
    shared_files: Vec<OwnedFd>,
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
            // Probe several directories: the probe also fails on a file system without events, for example tmpfs.
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

    /// Creates a log, and starts the thread that answers content events.
    ///
    /// # Errors
    ///
    /// The log or the source of events cannot be created.
    pub fn start(options: WatchOptions, holder: ListenerHolder) -> Result<Self> {
        let log = UndoLog::create(&options.directory, options.start, options.bytes_max)?;
        let keep = KeepPlaces::new(&options.directory)?;
        let marks = Fanotify::new()?;
        let events = marks.events();
        let costs = Costs::new(options.clock.clone(), options.cost_max, options.apart_max);
        let state = State::new(log, keep, Box::new(marks), Callers::new()?, options.start, costs);
        let shared = Arc::new(Shared::new(state, events));
        let threads = Arc::clone(&shared);
        spawn("undying-content", move || answer_events(&threads))?;
        let recipient = Arc::clone(&shared) as Arc<dyn Recipient>;
        let calls = CallReports::new(recipient, holder, Some(options.directory.clone()));
        Ok(Self { shared, calls, options, shared_files: Vec::new() })
    }

    /// Sets the handler of socket calls: see `CallReports::with_channels`.
    #[must_use]
    pub fn with_channels(mut self, channels: Arc<dyn CallHandler>) -> Self {
        self.calls = self.calls.clone().with_channels(channels);
        self
    }

    /// Sets the files that the subject shares with this program, and to which this program writes messages. Their lengths
    /// are recorded at each end of the subject. What is longer later, the subject has not written.
    #[must_use]
    pub fn with_shared_files(mut self, shared_files: Vec<OwnedFd>) -> Self {
        self.shared_files = shared_files;
        self
    }

    /// Sets the function that recognizes messages of this program in a file that the subject shares with this program.
    /// Such messages are no change of the file.
    #[must_use]
    pub fn with_own_lines(self, are_own_lines: OwnLines) -> Self {
        self.shared.state().unreported.own_lines = Some(are_own_lines);
        self
    }

    /// Returns the reports of the calls of the subject.
    #[must_use]
    pub fn calls(&self) -> &CallReports {
        &self.calls
    }

    /// Works like [`CheckpointWatch::boundary`].
    pub fn boundary(&self, sequence: Sequence, open: &[OpenFile<'_>], mapped: &[MappedFile<'_>]) -> Boundary {
        self.shared.state().boundary(sequence, open, mapped)
    }

    /// Makes the next boundary ignore [`WatchOptions::cost_max`], because the program relies on this checkpoint.
    pub fn demand_exact(&self) {
        self.shared.state().costs.demand();
    }

    /// Completes a boundary after the pause: writes its records, removes marks of fanotify(7) that are not needed any more, and prepares
    /// the file of the next epoch.
    pub fn after_pause(&self) {
        // The subject runs. Its calls that need the state must not wait for the disk.
        let writes = self.shared.state().log.writes();
        let outcome = writes.make();
        let mut state = self.shared.state();
        state.or_break(outcome, "a boundary");
        state.sweep();
        let writes = state.log.writes();
        drop(state);
        // If the file cannot be created now, the boundary creates it, or is deferred.
        let prepared = writes.prepare().ok().flatten();
        let mut state = self.shared.state();
        prepared.into_iter().for_each(|prepared| state.log.prepared(prepared));
        self.tend(state);
    }

    /// Records the end of the subject. The caller calls this method when no process of the subject is left. Changes
    /// between the end and `CallReports::attach` are not changes by the subject.
    ///
    /// # Errors
    ///
    /// The end cannot be recorded now. The caller calls this method again. Without the record, a rollback cannot tell
    /// later changes by other programs from changes by the subject.
    pub fn subject_ended(&self) -> Result<()> {
        let length = |file: &OwnedFd| {
            let stat = rustix::fs::fstat(file).ok()?;
            Some((stat.st_dev, stat.st_ino, stat.st_size as u64))
        };
        let lengths: Vec<_> = self.shared_files.iter().filter_map(length).collect();
        let mut state = self.shared.state();
        state.watched.mapped.stop();
        let clock = &self.options.clock;
        let now = std::cell::OnceCell::new();
        let end = || *now.get_or_init(|| clock.wall());
        let outcome = state.log.ended(|| end().into(), &lengths);
        match outcome {
            Err(UndoError::Kernel(error)) if state.epoch.broken.is_none() => return Err(error.into()),
            outcome => state.or_break(outcome, "the time of the end"),
        }
        state.boundaries.durable.ended();
        drop(state);
        // A change in the same tick of the kernel would get an earlier time than the end.
        let tick = Deadline::after(TICK_MAX);
        while clock::of_changes() <= end() && !tick.has_passed() {
            std::thread::sleep(TICK_PART);
        }
        Ok(())
    }

    /// Returns the checkpoints that a rollback can reach, in rising order.
    #[must_use]
    pub fn exact(&self) -> Vec<Sequence> {
        let state = self.shared.state();
        if state.epoch.broken.is_some() {
            return Vec::new();
        }
        // A rollback also needs the list of files that were open at the checkpoint.
        let known = |sequence: &Sequence| state.boundaries.has(*sequence);
        state.log.sequences().into_iter().filter(known).collect()
    }

    /// Returns the oldest checkpoint after which no file has changed until now. `None`: files have changed since the
    /// newest boundary. A mapped file counts as changed, because its changes are not reported.
    #[must_use]
    pub fn unchanged_from(&self) -> Option<Sequence> {
        let state = self.shared.state();
        state.boundaries.unchanged_from().filter(|_| state.is_unchanged())
    }

    /// Rolls files back to a checkpoint, and begins a new epoch at this checkpoint. The caller has called
    /// [`Self::subject_ended`] before. `leave` lists files by device and inode number; the rollback does not change the
    /// content and attributes of these files. Until `CallReports::attach`, the watch regards all changes of files as part of
    /// the restore, and does not record the changes.
    ///
    /// # Errors
    ///
    /// The errors of `back::go_back`.
    pub fn go_back(&self, to: Sequence, leave: &[(u64, u64)]) -> Result<WentBack> {
        let _exclusive = self.shared.joins.exclude();
        let mut state = self.shared.state();
        state.is_restoring = true;
        let outcome = state.log.writes().make();
        state.or_break(outcome, "a boundary");
        let went = back::go_back(&self.options.directory, to, Conflicts::Refuse, leave, Durability::Kill)?;
        state.log = UndoLog::open(&self.options.directory, self.options.bytes_max)?;
        state.begin_epoch();
        state.watched.mapped.clear();
        let armed = state.boundaries.go_back(to);
        let outcome = match state.arm_again(&armed) {
            // The caller repeats the rollback, which then has nothing left to change.
            Err(UndoError::Kernel(error)) if error.errno.may_pass() => return Err(error.into()),
            outcome => outcome,
        };
        state.or_break(outcome, "the files that were open at the checkpoint");
        let recorded = state.log.idle();
        state.or_break(recorded, "the end of the rollback");
        state.epoch.is_touched = false;
        self.tend(state);
        Ok(went)
    }

    /// Checks that the subject finds its files after a rollback, as [`back::check_opened`] does.
    ///
    /// # Errors
    ///
    /// The errors of `back::check_opened`.
    pub fn check_opened(
        &self,
        to: Sequence,
        leave: &[(u64, u64)],
        opened: impl Iterator<Item = (PathBuf, (u64, u64))>,
    ) -> Result<()> {
        let _exclusive = self.shared.joins.exclude();
        let mut state = self.shared.state();
        let outcome = state.log.writes().make();
        state.or_break(outcome, "a boundary");
        drop(state);
        back::check_opened(&self.options.directory, to, Conflicts::Refuse, leave, opened)
    }

    /// Begins a new log for a subject that starts from its beginning. The present state of files is the state at the
    /// beginning.
    ///
    /// # Errors
    ///
    /// The log cannot be created.
    pub fn start_over(&self, start: Sequence) -> Result<()> {
        let _exclusive = self.shared.joins.exclude();
        let mut state = self.shared.state();
        state.log = UndoLog::create(&self.options.directory, start, self.options.bytes_max)?;
        state.begin_epoch();
        state.watched.mapped.clear();
        state.boundaries = Boundaries::starting_at(start, state.moment());
        state.is_restoring = false;
        Ok(())
    }

    /// Retains the checkpoints in `kept` (in rising order), and all checkpoints that are newer than the last of `kept`.
    /// Forgets all other checkpoints.
    pub fn retain(&self, kept: &[Sequence]) {
        let mut state = self.shared.state();
        let outcome = state.log.retain(kept);
        state.or_break(outcome, "older epochs");
        state.boundaries.retain(kept);
        self.join_epochs(state);
    }

    /// Returns those of the checkpoints `since` after which the subject has made data durable, and has then sent data to
    /// a peer outside its tree. The peer may rely on this data. Peers are the clients of the subject, and servers to
    /// which the subject has made TCP connections. If sends cannot be observed, a sync alone counts.
    #[must_use]
    pub fn told_since(&self, since: &[Sequence]) -> Vec<Sequence> {
        let state = self.shared.state();
        state.boundaries.durable.told(since, |key, wall| state.has_changed_since(key, wall))
    }

    /// Returns the state of the watch for `undying status`.
    #[must_use]
    pub fn report(&self) -> WatchReport {
        let state = self.shared.state();
        WatchReport {
            broken: state.epoch.broken.clone(),
            last_break: state.last_break.clone(),
            uncovered: state.unreported.paths.clone(),
            newest_exact: state.boundaries.newest(),
            bytes: state.log.bytes(),
            cost: state.costs.share(),
            apart: state.costs.apart(),
        }
    }
}

impl State {
    /// Marks or records the files that were open at the restored checkpoint, because the subject can change these files
    /// without opening them.
    fn arm_again(&mut self, list: &[Armed]) -> Result<()> {
        for armed in list {
            if let Some(file) = self.find_armed(armed)? {
                self.arm(armed, file.as_fd())?;
            }
        }
        // The restore opens files for the subject. The kernel reports changes through these descriptions only if their
        // mounts are enabled before the open.
        self.file_systems.enable_all(self.watched.source())
    }

    /// Opens a file that was open at a checkpoint. Returns `None` if the file is gone. If the rollback has created the
    /// file again, the recorded handle does not lead to the new inode, and the restore refuses the new file.
    fn find_armed(&self, armed: &Armed) -> Result<Option<OwnedFd>> {
        let opened = match self.file_systems.mount(armed.key.device) {
            Some(_) => self.file_systems.open(&armed.key),
            // No call of the subject has led to this file system. The subject has inherited the file.
            None => rustix::fs::open(&armed.path, PATH_ONLY | OFlags::NOFOLLOW, Mode::empty())
                .map_err(|errno| sys::Error::path("open", &armed.path, errno).into()),
        };
        match opened {
            Ok(file) => Ok((key_of(file.as_fd(), &stat(file.as_fd())?)? == armed.key).then_some(file)),
            Err(UndoError::Kernel(error)) if error.errno.is_of_missing_file() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
