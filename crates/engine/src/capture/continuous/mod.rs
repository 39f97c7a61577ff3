//! Continuous checkpointing of one subject.
//!
//! Owns: the values kept between two checkpoints (mappings, trackers, buffers), pre-copy, the order of an epoch.
//! Invariants: a checkpoint in the log contains every page as it was in the pause, whether the page was copied in this
//! pause, before it, or in an earlier epoch. After a failure, the next checkpoint starts from nothing. Inside the
//! pause, only pages are copied that have changed since their last copy.
//! Does not: decide when the next checkpoint is due, or write.

mod attempt;
mod budget;
mod deferred;
mod hot;
mod precopy;
mod spaces;
mod taken;
mod tracked;
mod tuning;
mod verify;
mod worker_pool;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use image::RecordSet;
use model::{Pid, ProcessKey, Sequence};
use resource::files::FileRecord;
use store::{Base, CheckpointSink, ImageReader, OpenCheckpoint};
use sys::clock::Stopwatch;
use sys::packet_hold::{PacketHold, PacketNumber};
use tracee::Urgent;
use track::{Moment, TrackerKind};
use undo::watch::Watch;

use self::spaces::Spaces;
use self::taken::Counts;
pub(super) use self::taken::Stood;
pub use self::taken::{Slices, Taken, Tracking};
pub use self::tuning::{MAX_PAUSE_DEFAULT, MAX_PAUSE_MIN, Preference, Tuning};
pub use self::verify::{Comparison, Difference};
use super::before::{Before, look_in_any_case};
use super::copier::{Nowhere, PageSink};
use super::group::GroupMember;
use super::options::CheckpointOptions;
use super::phases::{Phase, Phases};
use super::pipeline::{Captured, Held};
use super::reserve::Expected;
use super::watched::Watched;
use crate::error::{EngineError, Result};

/// How long a subject stands still for a checkpoint that is to be compared with it: seconds are what was asked for, a
/// disk that has failed is not.
const VERIFY_WAIT_MAX: Duration = Duration::from_secs(10);

/// Where nothing is copied, areas that are new are watched after so many looks, since that takes a pause.
const LOOKS_EACH_COVER: u64 = 64;

/// What continuous checkpointing of one subject keeps from one checkpoint to the next.
pub struct Continuous {
    root: Pid,
    /// `None` before the first checkpoint, and after one that failed.
    before: Option<Before>,
    spaces: Spaces,
    /// The next checkpoint starts from nothing.
    is_whole: bool,
    /// Looks without a checkpoint.
    looks: u64,
    /// How long the subject was stopped for aborted captures since the last checkpoint.
    aborted: Duration,
    /// What the next pause may copy, with the urgent rounds before it.
    expected: Expected,
    /// What pre-copy may.
    expected_before: Expected,
    found: Found,
    /// Where what the subject sends waits for the checkpoint that has it.
    hold: Option<Arc<PacketHold>>,
    /// Binds the state of files to each checkpoint, if files are watched.
    watched: Watched,
    /// Where its checkpoint waits for those of other subjects.
    member: Option<GroupMember>,
}

/// What the checkpoint that is taken has found.
#[derive(Default)]
struct Found {
    /// Files that the subject may write.
    written: Vec<FileRecord>,
    /// Connections that may outlive it.
    connections: Vec<Arc<OwnedFd>>,
    /// The last packet that was held before the pause.
    held_through: Option<PacketNumber>,
}

impl fmt::Debug for Continuous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Continuous")
            .field("root", &self.root)
            .field("tracked", &self.spaces.tracked)
            .finish_non_exhaustive()
    }
}

impl Continuous {
    /// Prepares for a subject; nothing of it is touched before the first checkpoint.
    #[must_use]
    pub fn new(root: Pid, kind: &'static dyn TrackerKind) -> Self {
        Self {
            root,
            before: None,
            spaces: Spaces::new(kind, Tuning::default()),
            is_whole: true,
            looks: 0,
            aborted: Duration::ZERO,
            expected: Expected::default(),
            expected_before: Expected::default(),
            found: Found::default(),
            hold: None,
            watched: Watched::default(),
            member: None,
        }
    }

    /// With choices of an operator.
    #[must_use]
    pub fn tuned(self, tuning: Tuning) -> Self {
        Self { spaces: Spaces::new(self.spaces.kind, tuning), ..self }
    }

    /// With a watch over the files of the subject: each checkpoint is bound to their state inside its pause.
    #[must_use]
    pub fn watched(self, watch: Arc<Watch>) -> Self {
        Self { watched: Watched::new(watch), ..self }
    }

    /// What the subject sends is held there: the caller releases, once a checkpoint is durable, what was sent before
    /// (`Taken::held_through`).
    #[must_use]
    pub fn holding(self, hold: Arc<PacketHold>) -> Self {
        Self { hold: Some(hold), ..self }
    }

    /// The root of the subject.
    #[must_use]
    pub fn root(&self) -> Pid {
        self.root
    }

    /// The processes of the subject at its last checkpoint, without the root.
    #[must_use]
    pub fn descendants(&self) -> Vec<ProcessKey> {
        let Some(before) = &self.before else { return Vec::new() };
        let others = before.processes.living.iter().filter(|(pid, _)| **pid != self.root);
        others.map(|(_, process)| process.stat.key()).collect()
    }

    /// Takes one checkpoint into the log. `None` when the log has as much to write as it will take.
    ///
    /// # Errors
    ///
    /// What stands in the way, or what went wrong with earlier checkpoints in the log. The subject goes on.
    pub fn checkpoint(
        &mut self,
        log: &dyn CheckpointSink,
        options: &CheckpointOptions,
    ) -> Result<Option<Taken>> {
        let taken = self.begin_and(log, options, |subject, epoch, options| {
            subject.take(epoch, options, |subject, captured| {
                let phases = captured.0.resume()?;
                subject.watched.resumed();
                subject.spaces.note_stop(&phases);
                Ok((phases, ()))
            })
        })?;
        Ok(taken.map(|(taken, ())| taken))
    }

    /// As `checkpoint`, and leaves the subject stopped. The log makes the checkpoint durable meanwhile.
    ///
    /// # Errors
    ///
    /// As `checkpoint`.
    pub fn checkpoint_and_hold(
        &mut self,
        log: &dyn CheckpointSink,
        options: &CheckpointOptions,
    ) -> Result<Option<(Taken, Held)>> {
        self.begin_and(log, options, |subject, epoch, options| {
            subject.take(epoch, options, |subject, captured| {
                Ok((captured.0.phases, captured.hold(subject.watched.hold())))
            })
        })
    }

    /// As `checkpoint_and_hold`, as one of several subjects that are all stopped before any of them is captured. The
    /// last stop has no pause budget, and is not repeated.
    ///
    /// # Errors
    ///
    /// As `checkpoint`, or `GroupBroken` when another subject could not be stopped in time.
    pub fn checkpoint_of_group(
        &mut self,
        log: &dyn CheckpointSink,
        options: &CheckpointOptions,
        member: GroupMember,
    ) -> Result<Option<(Taken, Held)>> {
        self.member = Some(member);
        let outcome = self.checkpoint_and_hold(log, options);
        self.member = None;
        outcome
    }

    /// As `checkpoint`, and compares it with the subject before that goes on: for as long as it takes to write the
    /// checkpoint and to read all of it again. `read` opens a checkpoint of the log.
    ///
    /// # Errors
    ///
    /// As `checkpoint`. A difference is none; the next checkpoint should then start from nothing.
    pub fn checkpoint_and_verify(
        &mut self,
        log: &dyn CheckpointSink,
        read: &dyn Fn(Sequence) -> store::Result<ImageReader>,
        options: &CheckpointOptions,
    ) -> Result<Option<(Taken, Comparison)>> {
        self.begin_and(log, options, |subject, epoch, options| {
            let (taken, captured) =
                subject.take(epoch, options, |_, captured| Ok((captured.0.phases, captured)))?;
            // The subject stays stopped meanwhile.
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

    /// Forgets everything: the next checkpoint starts from nothing. To be called when the log has lost one.
    pub fn start_over(&mut self) {
        self.before = None;
        self.spaces.tracked.clear();
        self.is_whole = true;
    }

    /// Looks for changes and begins a new round of tracking, and copies nothing: what tracking alone costs.
    ///
    /// # Errors
    ///
    /// As `checkpoint`. The subject goes on.
    pub fn track(&mut self, options: &CheckpointOptions) -> Result<Tracking> {
        self.track_once(options).inspect_err(|_| self.start_over())
    }

    fn track_once(&mut self, options: &CheckpointOptions) -> Result<Tracking> {
        let mut before = self.survey(options)?;
        let mut found = Tracking { arming: self.arm(&mut before, &Nowhere)?, ..Tracking::default() };
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS_EACH_COVER) {
            found.arming += self.cover_all(&mut before, &Nowhere)?;
        }
        let began = Stopwatch::start();
        let stopped = if self.spaces.kind.properties().rearms_running {
            None
        } else {
            Some((Urgent::begin(), self.spaces.freezer.stop(self.root)?))
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
        Ok(found)
    }

    /// Begins a checkpoint in the sink, and takes it. After a failure the next one starts from nothing.
    fn begin_and<T>(
        &mut self,
        log: &dyn CheckpointSink,
        options: &CheckpointOptions,
        take: impl FnOnce(&mut Self, Box<dyn OpenCheckpoint>, &CheckpointOptions) -> Result<T>,
    ) -> Result<Option<T>> {
        // What is done to a subject that is about to end must not be done to this one.
        let options = CheckpointOptions { kill: false, ..options.clone() };
        let base = if self.is_whole { Base::Nothing } else { Base::Newest };
        let Some(epoch) = log.begin(options.sequence, base)? else { return Ok(None) };
        self.watched.begin(options.sequence);
        let outcome = take(self, epoch, &options);
        self.watched.resumed();
        let taken = outcome.inspect_err(|_| self.start_over())?;
        self.is_whole = false;
        Ok(Some(taken))
    }

    /// Captures the subject into an epoch. `leave` decides what becomes of the stopped subject.
    fn take<L>(
        &mut self,
        epoch: Box<dyn OpenCheckpoint>,
        options: &CheckpointOptions,
        mut leave: impl FnMut(&mut Self, Captured) -> Result<(Phases, L)>,
    ) -> Result<(Taken, L)> {
        let mut phases = Phases::new();
        let mut before = self.survey(options)?;
        phases[Phase::Look] = phases.began.elapsed();
        let complete = self.patiently(&mut before, &*epoch, |subject, before| {
            let Stood { captured, reserve, arming } = subject.stop(before, &*epoch, phases)?;
            let time = captured.0.time;
            let (mut phases, left) = leave(subject, captured)?;
            let mut laps = Stopwatch::start();
            // First of all: should what follows fail, the next attempt has to find it in the epoch.
            reserve.end()?;
            let records = subject.records(before).inspect_err(|_| subject.aborted += phases.pause())?;
            phases[Phase::Finish] = laps.lap();
            Ok((records, time, arming, phases, left))
        })?;
        let mut laps = Stopwatch::start();
        let (records, time, arming, mut phases, left) = complete;
        let timings = phases.timings();
        let ticket = epoch.commit(records, before.meta(time, timings))?;
        phases[Phase::Finish] += laps.lap();
        self.spaces.dirty.make_room();
        self.spaces.tracked.values_mut().for_each(|tracked| tracked.hot.learn());
        let Counts { rounds, precopied, residual, slices, .. } = self.spaces.counts;
        let arming = arming + std::mem::take(&mut self.aborted);
        let boundary = self.watched.take();
        let Found { written: files, connections, held_through } = std::mem::take(&mut self.found);
        self.before = Some(before);
        let taken = Taken {
            ticket,
            timings,
            phases,
            arming,
            slices,
            rounds,
            precopied,
            residual,
            files,
            boundary,
            connections,
            held_through,
        };
        Ok((taken, left))
    }

    /// All that is not pages. Nothing of it needs the subject to stand still.
    fn records(&mut self, before: &mut Before) -> Result<RecordSet> {
        before.processes.complete_areas(&mut before.objects)?;
        let records = before.records()?;
        self.spaces.bypasses_cache = before.descriptors.bypass_cache();
        self.found.written = std::mem::take(&mut before.descriptors.files.written);
        self.found.connections = before.descriptors.take_connections();
        self.found.held_through = before.descriptors.held_through();
        before.descriptors.forget();
        before.threads.sweep(&before.processes);
        Ok(records)
    }

    /// As `stop`, for a single checkpoint of a subject that has been looked at; `None` when the subject cannot be
    /// tracked, or has begun to read past the page cache. Nothing of it is in the checkpoint then.
    pub(super) fn stop_once<'a>(
        &mut self,
        before: &mut Before,
        sink: &'a dyn PageSink,
    ) -> Result<Option<Stood<'a>>> {
        before.processes.is_continuous = true;
        // Pre-copy takes a while: what the subject closes meanwhile has to be closed.
        before.descriptors.forget();
        let stood = self.patiently(before, sink, |subject, before| {
            let arming = subject.arm(before, sink)?;
            before.processes.survey(&mut before.objects)?;
            let stood = subject.stop(before, sink, Phases::new())?;
            Ok(Stood { arming: arming + stood.arming + subject.aborted, ..stood })
        });
        let outcome = match stood {
            Ok(stood) => return Ok(Some(stood)),
            Err(EngineError::Track(_) | EngineError::Unsteady) => {
                self.spaces.tracked.values().try_for_each(|tracked| tracked.take_back(sink))
            }
            Err(error) => Err(error),
        };
        before.descriptors.release();
        outcome.map(|()| None)
    }

    /// Ends all tracking of a subject that runs on, in a pause of its own; how long that was.
    pub(super) fn untrack(&mut self) -> Result<Duration> {
        self.spaces.tracked.values_mut().for_each(|tracked| tracked.tracker.unwind());
        let urgent = Urgent::begin();
        let tree = self.spaces.freezer.stop(self.root)?;
        let began = tree.began;
        self.spaces.tracked.values_mut().for_each(|tracked| tracked.tracker.leave());
        tree.resume()?;
        let pause = began.elapsed();
        drop(urgent);
        self.spaces.tracked.clear();
        Ok(pause)
    }

    /// What is known of the running subject: looked at closely for the first time, followed later.
    ///
    /// Descriptors are held for the first time to refuse in time, and closed at once: pre-copy can be long, and what
    /// the subject closes meanwhile has to be closed.
    fn survey(&mut self, options: &CheckpointOptions) -> Result<Before> {
        if let Some(mut before) = self.before.take() {
            before.descriptors.options = options.clone();
            before.processes.survey(&mut before.objects)?;
            return Ok(before);
        }
        let mut before = look_in_any_case(self.root, options)?;
        if let Some(hold) = &self.hold {
            before.descriptors.hold_output(Arc::clone(hold));
        }
        self.spaces.bypasses_cache = before.descriptors.bypass_cache();
        before.descriptors.forget();
        before.processes.is_continuous = true;
        Ok(before)
    }

    /// Has processes tracked that are not yet, in a pause of its own: all their pages can then be copied while they
    /// run. How long that pause was.
    fn arm(&mut self, before: &mut Before, sink: &dyn PageSink) -> Result<Duration> {
        let mut living = before.processes.living.keys();
        let lacks_any = living.any(|pid| !self.spaces.tracked.contains_key(pid));
        if lacks_any { self.cover_all(before, sink) } else { Ok(Duration::ZERO) }
    }

    /// Attaches what is missing and has all areas watched, in a pause. How long that was.
    fn cover_all(&mut self, before: &mut Before, sink: &dyn PageSink) -> Result<Duration> {
        let prepared = self.spaces.prepare(before);
        let _urgent = Urgent::begin();
        let mut tree = self.spaces.freezer.stop(self.root)?;
        let began = tree.began;
        before.processes.settle(&tree, &mut before.objects)?;
        self.spaces.settle(before, prepared, &mut tree, sink)?;
        tree.resume()?;
        Ok(began.elapsed())
    }
}
