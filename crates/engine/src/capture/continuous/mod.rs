//! Continuous checkpointing: one checkpoint after the other of a subject that hardly notices.
//!
//! Owns: what is kept between two checkpoints (areas, trackers, buffers), pre-copy, the order of an epoch.
//! Invariants: a checkpoint in the log holds every page as it was in the pause, whether it was copied in it, before
//! it, or epochs ago; after any failure the next checkpoint starts from nothing; inside the pause no page is copied
//! that has not changed since it was copied last.
//! Does not: decide when the next checkpoint is due, or write.

mod budget;
mod crew;
mod deferred;
mod hot;
mod pace;
mod patience;
mod pause;
mod phases;
mod rounds;
mod slices;
mod taken;
mod tracked;
mod tuning;
mod verify;
mod watched;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use image::{RecordSet, Timings};
use model::{PageCount, Pid, ProcessKey, Sequence};
use resource::files::FileRecord;
use store::{Epoch, ImageReader, LogWriter, Ticket};
use tracee::{Freezer, StoppedTree, Urgent};
use track::{DirtyPages, Moment, TrackerKind};
use undo::watch::Watch;

use self::budget::Budget;
use self::crew::CrewOf;
use self::pace::Pace;
use self::pause::{Extent, cover, leave_ended, prepare};
use self::phases::Laps;
pub use self::phases::Phases;
use self::rounds::{Counts, LAST_ROUND_MAX, RESIDUAL_GOAL};
pub use self::taken::{Slices, Taken, Tracking};
use self::tracked::{EVERYTHING, Tracked};
pub use self::tuning::{MAX_PAUSE_DEFAULT, MAX_PAUSE_MIN, Preference, Tuning};
pub use self::verify::{Comparison, Difference};
use self::watched::Watched;
use super::before::Before;
use super::copier::{Nowhere, PageSink};
use super::reserve::{Expected, Reserve};
use super::{CheckpointOptions, look_while_it_runs, look_while_it_stands, meta};
use crate::error::{EngineError, Result};

/// Pages that are copied before all ordinary threads of the processor, so that the pause need not: some 2.5 ms.
const URGENT_ROUND_MAX: PageCount = PageCount(2048);
/// Such rounds: what the subject dirties in one, the next copies in a quarter of the time.
const URGENT_ROUNDS_MAX: usize = 2;

/// How long a subject stands still for one buffer of a store that does not keep up: many times what a disk takes that
/// works, and short enough for those who wait for the subject.
const STANDING_WAIT_MAX: Duration = Duration::from_millis(250);

/// How long a subject stands still for a checkpoint that is to be compared with it: seconds are what was asked for, a
/// disk that has failed is not.
const VERIFY_WAIT_MAX: Duration = Duration::from_secs(10);

/// Where nothing is copied, areas that are new are watched after so many looks, since that takes a pause.
const LOOKS_EACH_COVER: u64 = 64;

/// What continuous checkpointing of one subject keeps from one checkpoint to the next.
pub struct Continuous {
    root: Pid,
    kind: &'static dyn TrackerKind,
    before: Option<Before>,
    tracked: HashMap<Pid, Tracked>,
    dirty: DirtyPages,
    freezer: Freezer,
    crew: CrewOf,
    tuning: Tuning,
    /// The next checkpoint starts from nothing.
    is_whole: bool,
    /// At the last look, a descriptor had O_DIRECT.
    bypasses_cache: bool,
    /// Looks without a checkpoint.
    looks: u64,
    /// What was reported as dirty is in the epoch, and no tracker is half told of anything.
    is_orderly: bool,
    /// How long the subject was stopped for aborted captures since the last checkpoint.
    stood_in_vain: Duration,
    /// What the next pause may copy, with the urgent rounds before it.
    expected: Expected,
    /// What pre-copy may.
    expected_before: Expected,
    pace: Pace,
    budget: Budget,
    /// Files that the subject may write, as the last checkpoint recorded them.
    written: Vec<FileRecord>,
    /// Binds the state of files to each checkpoint, if files are watched.
    watched: Watched,
}

impl fmt::Debug for Continuous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Continuous")
            .field("root", &self.root)
            .field("tracked", &self.tracked)
            .finish_non_exhaustive()
    }
}

/// A tree of which everything is taken and that stands still.
pub(super) struct Stood<'a> {
    /// Dropped in this order: the tree goes on first.
    pub(super) tree: (StoppedTree, Urgent),
    /// What was copied inside the pause.
    pub(super) reserve: Reserve<'a>,
    pub(super) phases: Phases,
    pub(super) time: SystemTime,
    pub(super) arming: Duration,
    counts: Counts,
}

/// Lets a tree go on; what the pause was spent on.
pub(super) fn resume((tree, urgent): (StoppedTree, Urgent), phases: &mut Phases) -> Result<Timings> {
    let mut laps = Laps::from(phases.began + phases.pause());
    tree.resume()?;
    phases.resume = laps.lap();
    drop(urgent);
    Ok(phases.timings())
}

impl Continuous {
    /// Prepares for a subject; nothing of it is touched before the first checkpoint.
    #[must_use]
    pub fn new(root: Pid, kind: &'static dyn TrackerKind) -> Self {
        Self {
            root,
            kind,
            before: None,
            tracked: HashMap::new(),
            dirty: DirtyPages::new(),
            freezer: Freezer::default(),
            crew: CrewOf::default(),
            tuning: Tuning::default(),
            is_whole: true,
            bypasses_cache: false,
            looks: 0,
            is_orderly: false,
            stood_in_vain: Duration::ZERO,
            expected: Expected::default(),
            expected_before: Expected::default(),
            pace: Pace::default(),
            budget: Budget::new(Tuning::default().max_pause),
            written: Vec::new(),
            watched: Watched::default(),
        }
    }

    /// With choices of an operator.
    #[must_use]
    pub fn tuned(self, tuning: Tuning) -> Self {
        Self { budget: Budget::new(tuning.max_pause), tuning, ..self }
    }

    /// With a watch over the files of the subject: each checkpoint is bound to their state inside its pause.
    #[must_use]
    pub fn watched(self, watch: Arc<Watch>) -> Self {
        Self { watched: Watched::new(watch), ..self }
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
        let others = before.processes.iter().filter(|(pid, _)| **pid != self.root);
        others.map(|(_, process)| process.stat.key()).collect()
    }

    /// Takes one checkpoint into the log. `None` when the log has as much to write as it will take.
    ///
    /// # Errors
    ///
    /// As `checkpoint`, or what went wrong with earlier checkpoints in the log. The subject goes on.
    pub fn checkpoint(&mut self, log: &LogWriter, options: &CheckpointOptions) -> Result<Option<Taken>> {
        // What is done to a subject that is about to end must not be done to this one.
        let options = CheckpointOptions { kill: false, ..options.clone() };
        let Some(epoch) = self.begin(log, &options)? else { return Ok(None) };
        self.watched.begin(options.sequence);
        let outcome = self.take(epoch, &options);
        self.watched.resumed();
        let taken = outcome.inspect_err(|_| self.start_over())?;
        self.is_whole = false;
        Ok(Some(taken))
    }

    /// Forgets everything: the next checkpoint starts from nothing. To be called when the log has lost one.
    pub fn start_over(&mut self) {
        self.before = None;
        self.tracked.clear();
        self.is_whole = true;
    }

    /// As `checkpoint`, and compares it with the subject before that goes on: for as long as it takes to write the
    /// checkpoint and to read all of it again. `read` opens a checkpoint of the log.
    ///
    /// # Errors
    ///
    /// As `checkpoint`. A difference is none; the next checkpoint should then start from nothing.
    pub fn checkpoint_and_verify(
        &mut self,
        log: &LogWriter,
        read: &dyn Fn(Sequence) -> store::Result<ImageReader>,
        options: &CheckpointOptions,
    ) -> Result<Option<(Taken, Comparison)>> {
        let options = CheckpointOptions { kill: false, ..options.clone() };
        let Some(epoch) = self.begin(log, &options)? else { return Ok(None) };
        self.watched.begin(options.sequence);
        let outcome = self.take_and_verify(epoch, read, &options);
        self.watched.resumed();
        let taken = outcome.inspect_err(|_| self.start_over())?;
        self.is_whole = false;
        Ok(Some(taken))
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
        self.look(options)?;
        let mut found = Tracking { arming: self.arm(&Nowhere)?, ..Tracking::default() };
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS_EACH_COVER) {
            found.arming += self.cover_all(&Nowhere)?;
        }
        let began = Instant::now();
        let stopped = if self.kind.properties().rearms_running {
            None
        } else {
            Some((Urgent::begin(), self.freezer.stop(self.root)?))
        };
        let moment = if stopped.is_some() { Moment::Stopped } else { Moment::Running };
        for tracked in self.tracked.values_mut() {
            found.pages += tracked.look(moment, &mut self.dirty)?;
        }
        found.scan = began.elapsed();
        if let Some((urgent, tree)) = stopped {
            tree.resume()?;
            found.pause = began.elapsed();
            drop(urgent);
        }
        Ok(found)
    }

    fn begin(&self, log: &LogWriter, options: &CheckpointOptions) -> Result<Option<Epoch>> {
        let begun =
            if self.is_whole { log.begin_full(options.sequence) } else { log.begin(options.sequence) };
        Ok(begun?)
    }

    fn take_and_verify(
        &mut self,
        epoch: Epoch,
        read: &dyn Fn(Sequence) -> store::Result<ImageReader>,
        options: &CheckpointOptions,
    ) -> Result<(Taken, Comparison)> {
        let stood = self.patiently(&epoch, |subject| {
            let Stood { tree, reserve, mut phases, time, counts, arming } = subject.stop(&epoch, options)?;
            reserve.end()?;
            let records = subject.records(&mut phases)?;
            Ok((tree, records, phases, time, counts, arming))
        })?;
        let (tree, records, mut phases, time, counts, arming) = stood;
        let timings = phases.timings();
        let ticket = self.hand_over(epoch, records, options, time, timings, &mut phases)?;
        // It stands still for this.
        let Some(committed) = ticket.wait_for(VERIFY_WAIT_MAX)? else {
            return Err(store::Error::Slow { waited: VERIFY_WAIT_MAX }.into());
        };
        let image = read(committed.sequence)?;
        let before = self.before.as_mut().expect("it was looked at first");
        let comparison = verify::compare(before, &tree.0, &image)?;
        resume(tree, &mut phases)?;
        let Counts { rounds, precopied, residual, slices, .. } = counts;
        let arming = arming + std::mem::take(&mut self.stood_in_vain);
        let files = std::mem::take(&mut self.written);
        let boundary = self.watched.take();
        let taken =
            Taken { ticket, timings, phases, arming, slices, rounds, precopied, residual, files, boundary };
        Ok((taken, comparison))
    }

    fn take(&mut self, epoch: Epoch, options: &CheckpointOptions) -> Result<Taken> {
        let taken = self.patiently(&epoch, |subject| {
            let Stood { tree, reserve, mut phases, time, counts, arming } = subject.stop(&epoch, options)?;
            let timings = resume(tree, &mut phases)?;
            subject.watched.resumed();
            subject.note_stop(&phases);
            let mut laps = Laps::from(Instant::now());
            // First of all: should what follows fail, the next attempt has to find it in the epoch.
            reserve.end()?;
            phases.finish = laps.lap();
            let records =
                subject.records(&mut phases).inspect_err(|_| subject.stood_in_vain += timings.pause)?;
            Ok((records, phases, time, counts, arming, timings))
        })?;
        let (records, mut phases, time, counts, arming, timings) = taken;
        let ticket = self.hand_over(epoch, records, options, time, timings, &mut phases)?;
        let Counts { rounds, precopied, residual, slices, .. } = counts;
        let arming = arming + std::mem::take(&mut self.stood_in_vain);
        let files = std::mem::take(&mut self.written);
        let boundary = self.watched.take();
        Ok(Taken { ticket, timings, phases, arming, slices, rounds, precopied, residual, files, boundary })
    }

    /// All that is not pages. Nothing of it needs the subject to stand still.
    fn records(&mut self, phases: &mut Phases) -> Result<RecordSet> {
        let mut laps = Laps::from(Instant::now());
        let before = self.before.as_mut().expect("it was looked at first");
        before.complete_areas()?;
        let records = super::after(before)?;
        self.bypasses_cache = before.descriptors.bypass_cache();
        self.written = std::mem::take(&mut before.descriptors.written);
        before.descriptors.forget();
        before.files.sweep();
        phases.finish += laps.lap();
        Ok(records)
    }

    /// Gives it to the log.
    fn hand_over(
        &mut self,
        epoch: Epoch,
        records: RecordSet,
        options: &CheckpointOptions,
        time: SystemTime,
        timings: Timings,
        phases: &mut Phases,
    ) -> Result<Ticket> {
        let mut laps = Laps::from(Instant::now());
        let before = self.before.as_ref().expect("it was looked at first");
        let ticket = epoch.finish(records, meta(before, options, time, timings))?;
        phases.finish += laps.lap();
        self.dirty.make_room();
        self.tracked.values_mut().for_each(Tracked::learn);
        Ok(ticket)
    }

    /// For a single checkpoint of a subject that has been looked at.
    pub(super) fn once(root: Pid, kind: &'static dyn TrackerKind, looked: Before) -> Self {
        let before = Some(Before { is_continuous: true, ..looked });
        Self { before, budget: Budget::new(None), ..Self::new(root, kind) }
    }

    /// As `stop`, for a single checkpoint; `None` when the subject cannot be tracked, and nothing was copied.
    pub(super) fn stop_once<'a>(
        &mut self,
        sink: &'a dyn PageSink,
        options: &CheckpointOptions,
    ) -> Result<Option<Stood<'a>>> {
        let Some(before) = &mut self.before else { return Ok(None) };
        // Pre-copy takes a while: what the subject closes meanwhile has to be closed.
        before.descriptors.forget();
        match self.arm(sink) {
            Ok(arming) => self.stop(sink, options).map(|stood| Some(Stood { arming, ..stood })),
            Err(EngineError::Track(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes all that was copied out of a checkpoint that is to be begun anew.
    pub(super) fn take_back(&self, sink: &dyn PageSink) -> Result<()> {
        let processes = self.before.iter().flat_map(|before| before.processes.values());
        for process in processes {
            sink.discard(process.space, EVERYTHING)?;
        }
        Ok(())
    }

    /// Ends all tracking of a subject that runs on, in a pause of its own; how long that was.
    pub(super) fn untrack(&mut self) -> Result<Duration> {
        self.tracked.values_mut().for_each(Tracked::unwind);
        let urgent = Urgent::begin();
        let tree = self.freezer.stop(self.root)?;
        let began = tree.began;
        self.tracked.values_mut().for_each(Tracked::end);
        tree.resume()?;
        let pause = began.elapsed();
        drop(urgent);
        self.tracked.clear();
        Ok(pause)
    }

    /// What is known of the subject. Ends all tracking.
    pub(super) fn finish(self) -> Before {
        self.before.expect("a subject was stopped, so it was looked at")
    }

    /// What is known of the subject, once it was looked at.
    pub(super) fn before(&mut self) -> Option<&mut Before> {
        self.before.as_mut()
    }

    /// Everything up to the end of the pause: the tree stands, and all of it is taken.
    pub(super) fn stop<'a>(
        &mut self,
        sink: &'a dyn PageSink,
        options: &CheckpointOptions,
    ) -> Result<Stood<'a>> {
        let mut phases = Phases::new();
        let mut laps = Laps::from(phases.began);
        self.is_orderly = true;
        self.look(options)?;
        phases.look = laps.lap();
        let arming = self.arm(sink)?;
        laps.lap();
        // Here a store that does not keep up lowers the rate, while the subject runs.
        let before = self.expected_before.average();
        let reserve = Reserve::new(sink, before, self.expected.pages())?;
        phases.room = laps.lap();
        let is_new = self.is_whole || !arming.is_zero();
        match self.copy_and_stand(&reserve, options, is_new, &mut phases) {
            Ok((tree, time, counts)) => Ok(Stood { tree, reserve, phases, time, arming, counts }),
            Err(error) => {
                // Trackers hold for told what was copied: it has to be in the epoch, should another attempt follow.
                self.is_orderly &= reserve.end().is_ok();
                Err(error)
            }
        }
    }

    /// Pre-copy, and all that is inside the pause; `is_new` when a process was never copied.
    fn copy_and_stand(
        &mut self,
        reserve: &Reserve<'_>,
        options: &CheckpointOptions,
        is_new: bool,
        phases: &mut Phases,
    ) -> Result<((StoppedTree, Urgent), SystemTime, Counts)> {
        let mut laps = Laps::from(Instant::now());
        let mut counts = self.precopy(reserve, is_new)?;
        phases.precopy = laps.lap();
        let before = self.before.as_mut().expect("it was looked at first");
        before.look_at_descriptors_again(options)?;
        phases.prepare = laps.lap();
        // Looking at descriptors takes as long as a round or two, in which the subject goes on.
        let has_more = counts.rounds > 0 && self.tuning.prefer.has_last_round();
        // A handler that has to let others go on first may wait for this very processor.
        let may_hurry = has_more && !self.kind.properties().sees_before;
        let least = if may_hurry { URGENT_ROUND_MAX } else { RESIDUAL_GOAL };
        if has_more && self.has_dirtied(least, LAST_ROUND_MAX) {
            self.round(reserve, &mut counts)?;
        }
        loop {
            self.slice(reserve, &mut counts)?;
            let before_urgent = counts.precopied;
            let urgent = self.approach(reserve, may_hurry, &mut counts)?;
            phases.precopy += laps.lap();
            reserve.limit_waits(Some(STANDING_WAIT_MAX));
            let time = SystemTime::now();
            let mut tree = self.freezer.stop(self.root)?;
            phases.began = tree.began;
            phases.stop = tree.began.elapsed();
            match self.inside(reserve, &mut tree, options, &mut counts, phases) {
                Ok(Extent::Whole) => {
                    let urgently = counts.precopied.get() - before_urgent.get();
                    self.expected.note(counts.residual + PageCount(urgently));
                    if !is_new {
                        self.expected_before.note(before_urgent);
                    }
                    return Ok(((tree, urgent), time, counts));
                }
                Ok(Extent::Part) => {
                    self.resume_part((tree, urgent), &mut counts, phases)?;
                    reserve.limit_waits(None);
                    reserve.run_on()?;
                    laps.lap();
                }
                Err(error) => {
                    drop(tree);
                    self.watched.resumed();
                    self.stood_in_vain += phases.began.elapsed();
                    return Err(error);
                }
            }
        }
    }

    /// Prepares all that a stop needs, and copies once more with the priority of the stop.
    fn approach(&mut self, reserve: &Reserve<'_>, may_hurry: bool, counts: &mut Counts) -> Result<Urgent> {
        let before = self.before.as_mut().expect("it was looked at first");
        self.crew.gather(before, &mut self.tracked, &self.tuning);
        let dirtied = self.pace.since(Instant::now()) + self.deferred();
        // From here on nothing is handed on: that wakes threads.
        reserve.stand(self.expected.pages().max(dirtied))?;
        let urgent = Urgent::begin();
        for _ in 0..URGENT_ROUNDS_MAX {
            if may_hurry && self.has_dirtied(RESIDUAL_GOAL, URGENT_ROUND_MAX) {
                self.round(reserve, counts)?;
            }
        }
        Ok(urgent)
    }

    /// Looks at the subject before anything is done. Descriptors are held for the first time to refuse in time, and
    /// let go of at once: pre-copy can be long, and what the subject closes meanwhile has to be closed.
    fn look(&mut self, options: &CheckpointOptions) -> Result<()> {
        if let Some(before) = &mut self.before {
            return before.look_at_tree_again();
        }
        let mut before = match look_while_it_runs(self.root, options)? {
            Some(before) => before,
            None => {
                let _stopped = StoppedTree::stop(self.root)?;
                look_while_it_stands(self.root, options)?
            }
        };
        self.bypasses_cache = before.descriptors.bypass_cache();
        before.descriptors.forget();
        self.before = Some(Before { is_continuous: true, ..before });
        Ok(())
    }

    /// Has processes tracked that are not yet, in a pause of its own: all their pages can then be copied while they
    /// run. How long that pause was.
    fn arm(&mut self, sink: &dyn PageSink) -> Result<Duration> {
        let Some(before) = &self.before else { return Ok(Duration::ZERO) };
        if before.processes.keys().all(|pid| self.tracked.contains_key(pid)) {
            return Ok(Duration::ZERO);
        }
        self.cover_all(sink)
    }

    /// Attaches what is missing and has all areas watched, in a pause. How long that was.
    fn cover_all(&mut self, sink: &dyn PageSink) -> Result<Duration> {
        let Some(before) = &mut self.before else { return Ok(Duration::ZERO) };
        let prepared = prepare(self.kind, &self.tracked, before);
        let _urgent = Urgent::begin();
        let mut tree = self.freezer.stop(self.root)?;
        let began = tree.began;
        before.refresh_processes(&tree)?;
        self.is_orderly = false;
        leave_ended(&mut self.tracked, before, sink);
        cover(self.kind, &self.tuning, &mut self.tracked, before, prepared, &mut tree, sink)?;
        tree.resume()?;
        self.is_orderly = true;
        Ok(began.elapsed())
    }
}
