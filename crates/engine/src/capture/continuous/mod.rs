//! Takes successive checkpoints of one subject. In this module, an *epoch* is a checkpoint in progress. //!
//! Owns: the values that are kept between two checkpoints (mappings, trackers, buffers); the order of the
//! steps of an epoch; pre-copy.
//! Invariants: a checkpoint in the log contains every page as the page was in the pause. The page may have
//! been copied in this pause, in pre-copy or in an earlier epoch. After a failure, the next checkpoint is a
//! full one. Inside the pause, only pages that have changed since their last copy are copied.
//! Does not: decide when the next checkpoint is due, or write data to the disk.

mod attempt;
mod budget;
mod copies;
mod deferred;
mod hot;
mod meanwhile;
mod pace;
mod precopy;
mod rewritten;
mod since;
mod spaces;
mod taken;
mod throttle;
mod together;
mod tracked;
mod tuning;
mod verify;
mod worker_pool;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use image::RecordSet;
use model::{ProcessKey, Sequence};
use resource::files::FileRecord;
use store::{Base, CheckpointSink, ImageReader, OpenCheckpoint, Urgency};
use sys::clock::Stopwatch;
use sys::packet_hold::{PacketHold, PacketNumber};
use tracee::{Roots, Urgent};
use track::{Moment, TrackerKind};
use undo::watch::CheckpointWatch;

use self::meanwhile::Meanwhile;
use self::spaces::Spaces;
use self::taken::Counts;
pub(super) use self::taken::StoppedCapture;
pub use self::taken::{Slices, Taken, Tracking};
pub use self::tuning::{MAX_PAUSE_DEFAULT, MAX_PAUSE_MIN, Preference, Tuning};
pub use self::verify::{Comparison, Difference};
use super::before::{Before, inspect};
use super::copier::{NullSink, PageSink};
use super::options::CheckpointOptions;
use super::phases::{Phase, Phases};
use super::pipeline::{Captured, Held};
use super::reserve::ExpectedPages;
use super::watched::Watched;
use crate::error::{EngineError, Result};

/// Maximum time that a comparison waits until the checkpoint is durable. The subject is stopped during this
/// wait. An operator who requests a comparison expects a stop of seconds. With a failed disk, the limit ends
/// the wait.
const VERIFY_WAIT_MAX: Duration = Duration::from_secs(10);

/// Number of scans by `Continuous::track` between two updates of the trackers. An update adds new mappings to
/// the trackers, and needs a pause.
const SCANS_PER_COVER: u64 = 64;

/// The state of continuous checkpointing of one subject, kept from one checkpoint to the next.
pub struct Continuous {
    roots: Roots,
    /// The inspected state of the subject. `None` before the first checkpoint, and after a failed checkpoint.
    before: Option<Before>,
    spaces: Spaces,
    /// The last checkpoint. `None` if the next checkpoint must be a full one.
    last: Option<(Sequence, SystemTime)>,
    scans: u64,
    /// Time that the subject was stopped for aborted captures since the last checkpoint.
    aborted: Duration,
    expected: ExpectedPages,
    meanwhile: Meanwhile,
    found: Found,
    /// Holds each packet that the subject sends. The packet is released when a checkpoint that was taken
    /// after the sending is durable.
    hold: Option<Arc<PacketHold>>,
    /// Binds the state of files to each checkpoint, if files are watched.
    watched: Watched,
}

/// Results of the current checkpoint that are neither records nor pages.
#[derive(Default)]
struct Found {
    /// Regular files that the subject may write.
    written: Vec<FileRecord>,
    /// Mapped files that a restore needs.
    mapped: Vec<Arc<OwnedFd>>,
    /// TCP connections that may stay open after the death of the subject.
    connections: Vec<Arc<OwnedFd>>,
    /// The last packet that was held before the pause.
    held_through: Option<PacketNumber>,
}

impl fmt::Debug for Continuous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Continuous")
            .field("roots", &self.roots)
            .field("tracked", &self.spaces.tracked)
            .finish_non_exhaustive()
    }
}

impl Continuous {
    /// Creates the state for a subject. The subject is not accessed before the first checkpoint.
    #[must_use]
    pub fn new(roots: impl Into<Roots>, kind: &'static dyn TrackerKind) -> Self {
        Self {
            roots: roots.into(),
            before: None,
            spaces: Spaces::new(kind, Tuning::default()),
            last: None,
            scans: 0,
            aborted: Duration::ZERO,
            expected: ExpectedPages::default(),
            meanwhile: Meanwhile::new(),
            found: Found::default(),
            hold: None,
            watched: Watched::default(),
        }
    }

    /// Sets the options that an operator has chosen.
    #[must_use]
    pub fn tuned(self, tuning: Tuning) -> Self {
        Self { spaces: Spaces::new(self.spaces.kind, tuning), ..self }
    }

    /// Sets a watch over the files of the subject. Each checkpoint is bound to the state of the files in its
    /// pause.
    #[must_use]
    pub fn watched(self, watch: Arc<dyn CheckpointWatch>) -> Self {
        Self { watched: Watched::new(watch), ..self }
    }

    /// Holds the packets that the subject sends. When a checkpoint is durable, the caller releases the
    /// packets up to `Taken::held_through`.
    #[must_use]
    pub fn holding(self, hold: Arc<PacketHold>) -> Self {
        Self { hold: Some(hold), ..self }
    }

    /// Sets the root processes of the next checkpoint. Roots may join and leave the subject.
    pub fn set_roots(&mut self, roots: &Roots) {
        self.roots = roots.clone();
        if let Some(before) = &mut self.before {
            before.processes.roots = roots.clone();
        }
    }

    /// Returns the processes of the subject at its last checkpoint, without the roots.
    #[must_use]
    pub fn descendants(&self) -> Vec<ProcessKey> {
        let Some(before) = &self.before else { return Vec::new() };
        let others = before.processes.living.iter().filter(|(pid, _)| !self.roots.contains(**pid));
        others.map(|(_, process)| process.stat.key()).collect()
    }

    /// Takes one checkpoint into the log. Returns `None` if the log has too many unfinished checkpoints.
    ///
    /// # Errors
    ///
    /// Returns the reason why the subject cannot be captured, or the error of an earlier checkpoint in the
    /// log. The subject continues to run.
    pub fn checkpoint(
        &mut self,
        log: &dyn CheckpointSink,
        options: &CheckpointOptions,
    ) -> Result<Option<Taken>> {
        let taken = self.begin_and(log, options, Urgency::Precopy, |subject, epoch, options| {
            subject.take(epoch, options, |subject, captured| {
                let phases = captured.0.resume()?;
                subject.watched.resumed();
                subject.spaces.note_stop(&phases);
                Ok((phases, ()))
            })
        })?;
        Ok(taken.map(|(taken, ())| taken))
    }

    /// Like `checkpoint`, but leaves the subject stopped. The caller resumes or kills the subject through
    /// `Held`. The log makes the checkpoint durable at the same time.
    ///
    /// # Errors
    ///
    /// The same as `checkpoint`.
    pub fn checkpoint_and_hold(
        &mut self,
        log: &dyn CheckpointSink,
        options: &CheckpointOptions,
    ) -> Result<Option<(Taken, Held)>> {
        self.begin_and(log, options, Urgency::Final, |subject, epoch, options| {
            subject.take(epoch, options, |subject, captured| {
                Ok((captured.0.phases, captured.hold(subject.watched.hold())))
            })
        })
    }

    /// Stops the subject without a checkpoint. The caller resumes or kills the subject through `Held`.
    ///
    /// # Errors
    ///
    /// The subject could not be stopped. It continues to run.
    pub fn hold(&mut self) -> Result<Held> {
        Ok(Held::of(self.spaces.freezer.stop(&self.roots)?))
    }

    /// Like `checkpoint`, but compares the checkpoint with the subject before the subject is resumed. The
    /// subject stays stopped until the checkpoint is written, read back and compared. `read` opens a
    /// checkpoint of the log.
    ///
    /// # Errors
    ///
    /// The same as `checkpoint`. A difference is not an error. After a difference, the next checkpoint should
    /// be a full one.
    pub fn checkpoint_and_verify(
        &mut self,
        log: &dyn CheckpointSink,
        read: &dyn Fn(Sequence) -> store::Result<ImageReader>,
        options: &CheckpointOptions,
    ) -> Result<Option<(Taken, Comparison)>> {
        self.begin_and(log, options, Urgency::Final, |subject, epoch, options| {
            let (taken, captured) =
                subject.take(epoch, options, |_, captured| Ok((captured.0.phases, captured)))?;
            // The subject stays stopped during this wait.
            let Some(committed) = taken.ticket.wait_for(VERIFY_WAIT_MAX)? else {
                return Err(store::Error::Slow(VERIFY_WAIT_MAX).into());
            };
            let image = read(committed.sequence)?;
            let comparison = match &mut subject.before {
                Some(before) => verify::compare(before, &captured.0.tree, &image)?,
                None => Comparison::default(),
            };
            let phases = captured.0.resume()?;
            Ok((Taken { phases, ..taken }, comparison))
        })
    }

    /// Discards the inspected state and the trackers, so that the next checkpoint is a full one. If the log
    /// has lost a checkpoint, the caller must call this method.
    pub fn start_over(&mut self) {
        self.meanwhile.end();
        self.before = None;
        self.spaces.tracked.clear();
        self.last = None;
    }

    /// Scans for changed pages and begins a new tracking round, but copies nothing. Used to measure the cost
    /// of tracking alone.
    ///
    /// # Errors
    ///
    /// The same as `checkpoint`. The subject continues to run.
    pub fn track(&mut self, options: &CheckpointOptions) -> Result<Tracking> {
        self.track_once(options).inspect_err(|_| self.start_over())
    }

    fn track_once(&mut self, options: &CheckpointOptions) -> Result<Tracking> {
        let mut before = self.survey(options)?;
        let mut found = Tracking { arming: self.arm(&mut before, &NullSink::new())?, ..Tracking::default() };
        self.scans += 1;
        if self.scans.is_multiple_of(SCANS_PER_COVER) {
            found.arming += self.cover_all(&mut before, &NullSink::new())?;
        }
        let began = Stopwatch::start();
        let stopped = if self.spaces.kind.properties().rearms_running {
            None
        } else {
            Some((Urgent::begin(), self.spaces.freezer.stop(&self.roots)?))
        };
        let moment = if stopped.is_some() { Moment::Stopped } else { Moment::Running };
        let Spaces { tracked, dirty, .. } = &mut self.spaces;
        for tracked in tracked.values_mut() {
            tracked.scan(moment, dirty)?;
            found.pages += dirty.pages();
        }
        found.scan = began.elapsed();
        if let Some((urgent, tree)) = stopped {
            tree.resume()?;
            found.pause = began.elapsed();
            drop(urgent);
        }
        self.before = Some(before);
        // The pages of this scan are copied nowhere, so a following checkpoint must be a full one.
        self.last = None;
        Ok(found)
    }

    /// Begins a checkpoint in the sink, and takes the checkpoint. The writes are urgent if the subject stays
    /// stopped. After a failure, the next checkpoint is a full one.
    fn begin_and<T>(
        &mut self,
        log: &dyn CheckpointSink,
        options: &CheckpointOptions,
        urgency: Urgency,
        take: impl FnOnce(&mut Self, Box<dyn OpenCheckpoint>, &CheckpointOptions) -> Result<T>,
    ) -> Result<Option<T>> {
        // With `kill`, a capture may change the subject, because the subject ends afterwards. Here, the
        // subject continues to run, so `kill` is cleared.
        let options = CheckpointOptions { kill: false, ..options.clone() };
        let base = if self.last.is_none() { Base::Nothing } else { Base::Newest };
        let Some(epoch) = log.begin(options.sequence, base, urgency)? else { return Ok(None) };
        self.meanwhile.end();
        self.watched.begin(options.sequence);
        let outcome = take(self, epoch, &options);
        self.watched.resumed();
        outcome.map(Some).inspect_err(|_| self.start_over())
    }

    /// Captures the subject into an epoch. `leave` resumes the captured subject, or leaves it stopped.
    fn take<L>(
        &mut self,
        epoch: Box<dyn OpenCheckpoint>,
        options: &CheckpointOptions,
        mut leave: impl FnMut(&mut Self, Captured) -> Result<(Phases, L)>,
    ) -> Result<(Taken, L)> {
        let mut phases = Phases::new();
        let mut before = self.survey(options)?;
        phases[Phase::Inspect] = phases.began.elapsed();
        let complete = self.retry_transient(&mut before, &*epoch, |subject, before| {
            let StoppedCapture { captured, reserve, arming } = subject.stop(before, &*epoch, phases)?;
            let time = captured.0.time;
            let (mut phases, left) = leave(subject, captured)?;
            let mut laps = Stopwatch::start();
            // The copied pages are passed to the log before the next step. If the next step fails, a new
            // attempt follows. The trackers do not report the copied pages again, so the epoch must contain
            // these pages.
            reserve.end()?;
            let records = subject.records(before).inspect_err(|_| subject.aborted += phases.pause())?;
            phases[Phase::Finish] = laps.lap();
            Ok((records, time, arming, phases, left))
        })?;
        let mut laps = Stopwatch::start();
        let (records, time, arming, mut phases, left) = complete;
        let timings = phases.timings();
        let ticket = epoch.commit(records, before.meta(time, timings))?;
        self.last = Some((options.sequence, time));
        phases[Phase::Finish] += laps.lap();
        self.spaces.dirty.make_room();
        let interval = self.meanwhile.lap();
        let spaces = self.spaces.learn(&before, interval.is_some());
        self.meanwhile.begin(spaces, interval.unwrap_or_default());
        let Counts { rounds, precopied, residual, slices, .. } = self.spaces.counts;
        let arming = arming + std::mem::take(&mut self.aborted);
        let boundary = self.watched.take();
        let Found { written: files, mapped, connections, held_through } = std::mem::take(&mut self.found);
        self.before = Some(before);
        let taken = Taken {
            ticket,
            timings,
            phases,
            arming,
            slices,
            max_pause: self.spaces.budget.limit,
            rounds,
            precopied,
            residual,
            files,
            mapped,
            boundary,
            connections,
            held_through,
        };
        Ok((taken, left))
    }

    /// Collects all records except the pages. The subject may run during this call.
    fn records(&mut self, before: &mut Before) -> Result<RecordSet> {
        before.processes.complete_mappings(&mut before.objects)?;
        let records = before.records()?;
        self.spaces.bypasses_cache = before.descriptors.bypass_cache();
        self.found.written = std::mem::take(&mut before.descriptors.files.written);
        self.found.mapped = before.objects.hold_files();
        self.found.connections = before.descriptors.take_connections();
        self.found.held_through = before.descriptors.sockets.held_through();
        before.descriptors.forget();
        before.threads.sweep(&before.processes);
        Ok(records)
    }

    /// Like `stop`, for a single checkpoint of a subject that was already inspected. Returns `None` if
    /// tracking fails, or if the subject has opened a file with O_DIRECT since the inspection. After `None`,
    /// the checkpoint contains no page of the subject.
    pub(super) fn stop_once<'a>(
        &mut self,
        before: &mut Before,
        sink: &'a dyn PageSink,
    ) -> Result<Option<StoppedCapture<'a>>> {
        before.processes.is_continuous = true;
        // Closes the duplicates of the subject's descriptors in this process. Pre-copy can be long. With open
        // duplicates, close(2) in the subject would not release descriptions.
        before.descriptors.forget();
        let stopped = self.retry_transient(before, sink, |subject, before| {
            let arming = subject.arm(before, sink)?;
            before.processes.survey(&mut before.objects, subject.spaces.freezer.files())?;
            let stopped = subject.stop(before, sink, Phases::new())?;
            Ok(StoppedCapture { arming: arming + stopped.arming + subject.aborted, ..stopped })
        });
        let outcome = match stopped {
            Ok(stopped) => return Ok(Some(stopped)),
            Err(EngineError::Track(_) | EngineError::Unsteady) => {
                self.spaces.tracked.values().try_for_each(|tracked| tracked.remove_pages(sink))
            }
            Err(error) => Err(error),
        };
        before.descriptors.release();
        outcome.map(|()| None)
    }

    /// Ends all tracking of a subject that continues to run. Stops the subject for this purpose, and returns
    /// the length of the pause.
    pub(super) fn untrack(&mut self) -> Result<Duration> {
        self.spaces.tracked.values_mut().for_each(|tracked| tracked.tracker.unwind());
        let urgent = Urgent::begin();
        let tree = self.spaces.freezer.stop(&self.roots)?;
        let began = tree.began;
        self.spaces.tracked.values_mut().for_each(|tracked| tracked.tracker.leave());
        tree.resume()?;
        let pause = began.elapsed();
        drop(urgent);
        self.spaces.tracked.clear();
        Ok(pause)
    }

    /// Inspects the running subject. The first call inspects everything. Each following call inspects only
    /// new processes.
    ///
    /// The first inspection duplicates the descriptors of the subject to detect obstacles early, and closes
    /// the duplicates at once. Pre-copy can be long, and close(2) in the subject must take effect during
    /// pre-copy.
    fn survey(&mut self, options: &CheckpointOptions) -> Result<Before> {
        if let Some(mut before) = self.before.take() {
            before.descriptors.options = options.clone();
            before.processes.survey(&mut before.objects, self.spaces.freezer.files())?;
            return Ok(before);
        }
        let mut before = inspect(&self.roots, options)?;
        if let Some(hold) = &self.hold {
            before.descriptors.sockets.hold_output(Arc::clone(hold));
        }
        self.spaces.bypasses_cache = before.descriptors.bypass_cache();
        before.descriptors.forget();
        before.processes.is_continuous = true;
        Ok(before)
    }

    /// Attaches trackers to the processes without a tracker. After this call, pre-copy can copy the pages of
    /// these processes. Returns the length of the necessary pause; zero if every process has a tracker
    /// already.
    fn arm(&mut self, before: &mut Before, sink: &dyn PageSink) -> Result<Duration> {
        let mut living = before.processes.living.keys();
        let lacks_any = living.any(|pid| !self.spaces.tracked.contains_key(pid));
        if lacks_any { self.cover_all(before, sink) } else { Ok(Duration::ZERO) }
    }

    /// Stops the subject, attaches the missing trackers, and updates all trackers with the present mappings.
    /// Returns the length of this pause.
    fn cover_all(&mut self, before: &mut Before, sink: &dyn PageSink) -> Result<Duration> {
        let prepared = self.spaces.prepare(before);
        let _urgent = Urgent::begin();
        let mut tree = self.spaces.freezer.stop(&self.roots)?;
        let began = tree.began;
        before.processes.settle(&tree, &mut before.objects)?;
        self.spaces.settle(before, prepared, &mut tree, sink)?;
        tree.resume()?;
        Ok(began.elapsed())
    }
}
