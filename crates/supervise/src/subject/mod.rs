//! The state machine of one subject (a protected program): checkpoints, deaths and restarts.
//!
//! The root is the first process of a subject. An incarnation of a subject lasts from a start or restore to the next
//! death. A run consists of incarnations, until the subject is not restarted. A checkpoint in flight was taken, and is
//! not yet durable.
//!
//! Owns: the state of one subject, and the dispatch of events to the submodules.
//! Invariants: `step` is total: an event that does not fit the state changes nothing. The end of a run is final. Each
//! sequence number of a checkpoint is used once.
//! Does not: know how an action is carried out.

mod checkpoints;
mod death;
mod event;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use model::{Sequence, Signal};

use crate::back_off::{BackOff, BackOffPlan};
use crate::fault::Fault;
use crate::pace::{Pace, Pauses};
use crate::restarts::{RestartLimit, Restarts};
use crate::status::{ChangedFiles, RestartPolicy};
use crate::suspicion::Suspicion;

pub use event::{
    Action, Death, End, Event, Failure, FreshReason, LateReason, NotTaken, Notice, RestoreError, Sliced,
    State, Step, Survey,
};

/// The decisions made before a run begins.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plan {
    /// The time between two checkpoints. `None`: no checkpoint is taken, and a restart starts the program from its
    /// beginning.
    pub every: Option<Duration>,
    /// Whether the schedule takes only one checkpoint after each start from the beginning. A failed checkpoint is tried
    /// again after `every`.
    pub once: bool,
    /// Whether the schedule waits until the program has reported readiness.
    pub awaits_ready: bool,
    /// The deaths that are followed by a restart.
    pub restart: RestartPolicy,
    /// The limit on restarts.
    pub limit: RestartLimit,
    /// The back-off of restarts.
    pub back_off: BackOffPlan,
    /// The treatment of changed files at a restart. With `Rewind`, files are rolled back before the processes are
    /// built.
    pub files: ChangedFiles,
    /// Whether the program can be started from its beginning. An adopted program cannot be started.
    pub can_start: bool,
    /// The maximum number of checkpoints that are written at the same time.
    pub in_flight_max: usize,
}

/// The checkpoints in the store at the beginning of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beginning {
    /// The number of the next checkpoint.
    pub next: Sequence,
    /// The first checkpoint of this program. Earlier checkpoints belong to other programs.
    pub first: Sequence,
    /// The newest checkpoint.
    pub newest: Option<Sequence>,
}

/// The state machine of one subject, from the start of a run to its end.
#[derive(Debug)]
pub struct Subject {
    plan: Plan,
    state: State,
    pace: Pace,
    checkpoints: Checkpoints,
    incarnation: Incarnation,
    restarts: Restarts,
    back_off: BackOff,
    suspicion: Suspicion,
    /// The number of restarts that were begun.
    restart_count: u64,
    /// The actions that the current event has caused so far.
    actions: Vec<Action>,
}

/// The checkpoints of one subject.
#[derive(Debug)]
struct Checkpoints {
    /// The number of the next checkpoint.
    next: Sequence,
    /// The first checkpoint of this program.
    first: Sequence,
    /// The newest checkpoint from which this incarnation descends: committed by this incarnation, or restored.
    descends: Option<Sequence>,
    /// The checkpoints that are being written, in rising order.
    in_flight: VecDeque<Sequence>,
    /// Whether the log (the file of the checkpoints) is being opened again.
    is_opening: bool,
    /// The last due time that passed without a checkpoint and was counted as late.
    late: Option<Instant>,
}

impl Checkpoints {
    fn new(beginning: Beginning) -> Self {
        let Beginning { next, first, newest } = beginning;
        Self {
            next,
            first,
            descends: newest.filter(|newest| *newest >= first),
            in_flight: VecDeque::new(),
            is_opening: false,
            late: None,
        }
    }

    /// Excludes the checkpoints of older incarnations: a program started from its beginning does not descend from them.
    fn begin_anew(&mut self) {
        self.first = self.next;
        self.descends = None;
    }

    /// Removes a checkpoint from the checkpoints in flight. Returns `false` if the checkpoint was not in flight.
    fn remove(&mut self, sequence: Sequence) -> bool {
        let place = self.in_flight.iter().position(|found| *found == sequence);
        place.and_then(|place| self.in_flight.remove(place)).is_some()
    }

    /// Advances to the next number. The log accepts each number only once, also after a failed checkpoint.
    fn advance(&mut self) {
        self.next = Sequence(self.next.get().saturating_add(1));
    }
}

/// The state of the current incarnation of the program.
#[derive(Debug)]
struct Incarnation {
    /// The number of the incarnation, from 1.
    number: u64,
    began: Instant,
    /// Whether the incarnation has committed a checkpoint.
    has_checkpoint: bool,
    /// Whether the schedule may take checkpoints.
    is_ready: bool,
    /// Whether a process of the subject defers checkpoints.
    is_held: bool,
    /// Whether a checkpoint is requested and not yet being taken.
    is_wanted: bool,
    /// The signal that has requested the end of the subject, and the time of the request.
    ending: Option<(Signal, Instant)>,
    /// The reason for which the root is being killed; `None` if the root is not being killed.
    killed_for: Option<KilledFor>,
}

/// The reason for which `undying` kills the root of a subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KilledFor {
    /// Another process of the subject has died by this signal.
    Child(Signal),
    /// A check of the guardian (the supervising process) has found this fault of the subject.
    Fault(Fault),
}

impl Incarnation {
    fn begin(number: u64, is_ready: bool, now: Instant) -> Self {
        Self {
            number,
            began: now,
            has_checkpoint: false,
            is_ready,
            is_held: false,
            is_wanted: false,
            ending: None,
            killed_for: None,
        }
    }
}

impl Subject {
    /// Returns a subject that is being started or adopted. `Event::Started` reports that the subject runs.
    #[must_use]
    pub fn new(plan: Plan, beginning: Beginning, now: Instant) -> Self {
        Self {
            plan,
            state: State::Starting { is_with_files: false },
            pace: Pace::new(plan.every, now),
            checkpoints: Checkpoints::new(beginning),
            incarnation: Incarnation::begin(0, true, now),
            restarts: Restarts::new(plan.limit),
            back_off: BackOff::new(plan.back_off),
            suspicion: Suspicion::new(plan.limit.window),
            restart_count: 0,
            actions: Vec::new(),
        }
    }

    /// Handles an event. Returns the actions, which the caller carries out now, in this order.
    pub fn step(&mut self, now: Instant, event: Event) -> Vec<Action> {
        if matches!(self.state, State::Ended(_)) {
            self.after_end(&event, now);
            return Vec::new();
        }
        match event {
            Event::Started => self.started(now),
            Event::Ready => self.incarnation.is_ready = true,
            Event::Holds(is_held) => self.holds(is_held),
            Event::Wanted => self.incarnation.is_wanted |= self.state.is_alive(),
            Event::Due => self.due(now),
            Event::Continued => self.pace.begin(now),
            Event::Taken { pause, arming, sliced, is_store_slow } => {
                self.taken(now, (pause, arming), sliced, is_store_slow);
            }
            Event::Scanned { pause } => self.scanned(now, pause),
            Event::NotTaken(why) => self.not_taken(now, why),
            Event::LogLost => self.log_lost(),
            Event::LogOpened => self.checkpoints.is_opening = false,
            Event::LogNotOpened { is_dying } => self.log_not_opened(now, is_dying),
            Event::Committed { sequence, oldest } => self.committed(now, sequence, oldest),
            Event::WriteFailed(sequence) => self.not_committed(now, sequence, true),
            Event::CalledOff(sequence) => self.not_committed(now, sequence, false),
            Event::Differs(sequence) => self.suspicion.unusable(sequence),
            Event::EndRequested(signal) => self.end_requested(now, signal),
            Event::ChildFailed(signal) => self.kill(KilledFor::Child(signal)),
            Event::Faulted(fault) => self.kill(KilledFor::Fault(fault)),
            Event::Died { status, has_terminal, after_child } => {
                after_child.iter().for_each(|sequence| self.suspicion.unusable(*sequence));
                self.died(now, status, has_terminal);
            }
            Event::Cleared => self.cleared(now),
            Event::Surveyed(survey) => self.surveyed(now, &survey),
            Event::Restored => self.restored(now),
            Event::NotRestored(error) => self.not_restored(error),
            Event::NotStarted(error) => self.not_started(error),
            Event::Failed => self.fail(),
        }
        std::mem::take(&mut self.actions)
    }

    /// Returns the state of the subject.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the time at which `Event::Due` is needed, if no other event arrives earlier.
    #[must_use]
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::BackingOff(_, until) | State::Restoring { step: Step::Settling(until), .. } => Some(until),
            _ if self.can_take() => self.due_time(now),
            _ => None,
        }
    }

    /// Returns the number of the next checkpoint.
    #[must_use]
    pub fn next_sequence(&self) -> Sequence {
        self.checkpoints.next
    }

    /// Returns the first checkpoint of this program.
    #[must_use]
    pub fn first_sequence(&self) -> Sequence {
        self.checkpoints.first
    }

    /// Returns the checkpoints that are being written, in rising order.
    pub fn in_flight(&self) -> impl ExactSizeIterator<Item = Sequence> + '_ {
        self.checkpoints.in_flight.iter().copied()
    }

    /// Reports whether the root is being killed because another process has failed.
    #[must_use]
    pub fn has_failed_child(&self) -> bool {
        matches!(self.incarnation.killed_for, Some(KilledFor::Child(_)))
    }

    /// Returns the number of the current incarnation, from 1; 0 before the first incarnation.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation.number
    }

    /// Returns the number of restarts that were begun.
    #[must_use]
    pub fn restart_count(&self) -> u64 {
        self.restart_count
    }

    /// Returns the recent rate of committed checkpoints, per second.
    #[must_use]
    pub fn achieved_hz(&self) -> f64 {
        self.pace.achieved_hz()
    }

    /// Returns percentiles of the recent pauses.
    #[must_use]
    pub fn pauses(&self) -> Pauses {
        self.pace.pauses()
    }

    fn started(&mut self, now: Instant) {
        if !matches!(self.state, State::Starting { .. }) {
            return;
        }
        if self.incarnation.number > 0 {
            self.checkpoints.begin_anew();
            self.suspicion.begins_afresh();
        }
        let is_ready = !self.plan.awaits_ready || !self.plan.can_start;
        self.begin_incarnation(now, is_ready);
    }

    fn begin_incarnation(&mut self, now: Instant, is_ready: bool) {
        let ending = self.incarnation.ending.take();
        self.incarnation = Incarnation::begin(self.incarnation.number + 1, is_ready, now);
        self.pace.begin(now);
        self.state = State::Running;
        if let Some((signal, _)) = ending {
            self.incarnation.ending = Some((signal, now));
            self.actions.push(Action::Signal(signal));
        }
    }

    fn holds(&mut self, is_held: bool) {
        self.incarnation.is_held = is_held && self.state.is_alive();
        if matches!(self.state, State::Running | State::Held) {
            self.rest();
        }
    }

    /// Sets the state of a subject of which no checkpoint is being taken.
    fn rest(&mut self) {
        self.state = if self.incarnation.is_held { State::Held } else { State::Running };
    }

    fn due(&mut self, now: Instant) {
        match self.state {
            State::BackingOff(death, until) if now >= until => self.begin_restore(death),
            State::Restoring { step: Step::Settling(until), .. } if now >= until => self.judge(),
            _ if self.state.is_alive() => self.take_if_due(now),
            _ => {}
        }
    }

    /// Handles an event after the end of the run. A checkpoint that was being written at the end may still be
    /// committed.
    fn after_end(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Committed { sequence, .. } if self.checkpoints.remove(*sequence) => {
                self.pace.committed(now);
            }
            Event::WriteFailed(sequence) | Event::CalledOff(sequence) => {
                self.checkpoints.remove(*sequence);
            }
            _ => {}
        }
    }
}
