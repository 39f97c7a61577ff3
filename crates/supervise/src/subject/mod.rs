//! The state machine.
//!
//! Owns: the state of one subject, and which part of it an event concerns.
//! Invariants: `step` is total: an event that does not belong to the state changes nothing. An end is final. The
//! number of a checkpoint is used once.
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

/// What is decided before a run begins.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plan {
    /// Time between two checkpoints. `None`: none is ever taken, and a restart starts the program from its beginning.
    pub every: Option<Duration>,
    /// Of a program that starts from its beginning one checkpoint is taken by the clock, and tried again after `every`
    /// where it fails.
    pub once: bool,
    /// No checkpoint is due before the program has reported that it is ready.
    pub awaits_ready: bool,
    /// Which deaths are followed by a restart.
    pub restart: RestartPolicy,
    /// How many restarts are allowed.
    pub limit: RestartLimit,
    /// How long restarts wait.
    pub back_off: BackOffPlan,
    /// What a restart does with changed files. With `Rewind` they go back before the processes are built.
    pub files: ChangedFiles,
    /// The program can be started from its beginning. One that was adopted cannot.
    pub can_start: bool,
    /// Checkpoints that are being written at the same time, at most.
    pub in_flight_max: usize,
}

/// The checkpoints that a store has when a run begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beginning {
    /// The number of the next one.
    pub next: Sequence,
    /// The first checkpoint of this program; earlier ones belong to other programs.
    pub first: Sequence,
    /// The newest one.
    pub newest: Option<Sequence>,
}

/// One subject, from the start of a run to its end.
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
    /// Restarts that were begun.
    restart_count: u64,
    /// What the event that is being handled has led to so far.
    actions: Vec<Action>,
}

/// The checkpoints of one subject.
#[derive(Debug)]
struct Checkpoints {
    /// The number of the next one.
    next: Sequence,
    /// The first one of this program.
    first: Sequence,
    /// The newest checkpoint that this incarnation descends from.
    descends: Option<Sequence>,
    /// Those that are being written, rising.
    in_flight: VecDeque<Sequence>,
    /// The log is being opened anew.
    is_opening: bool,
    /// The due time that passed without a checkpoint, as far as it was counted.
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

    /// What older incarnations have left is not the past of this one.
    fn begin_anew(&mut self) {
        self.first = self.next;
        self.descends = None;
    }

    /// Takes one out of those in flight; `false` if it was left behind.
    fn remove(&mut self, sequence: Sequence) -> bool {
        let place = self.in_flight.iter().position(|found| *found == sequence);
        place.and_then(|place| self.in_flight.remove(place)).is_some()
    }

    /// The log takes no number twice, whatever became of it.
    fn advance(&mut self) {
        self.next = Sequence(self.next.get().saturating_add(1));
    }
}

/// What is known of the present incarnation of the program.
#[derive(Debug)]
struct Incarnation {
    /// From 1.
    number: u64,
    began: Instant,
    /// It has committed a checkpoint.
    has_checkpoint: bool,
    /// Checkpoints are due by the clock.
    is_ready: bool,
    /// One of its processes holds checkpoints back.
    is_held: bool,
    /// A checkpoint is requested and not being taken.
    is_wanted: bool,
    /// A signal has requested its end.
    ending: Option<(Signal, Instant)>,
    /// Why the root is killed, if it is.
    killed_for: Option<KilledFor>,
}

/// Why the root of a subject is killed by us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KilledFor {
    /// Another process has failed by this signal.
    Child(Signal),
    /// A check from outside finds the subject faulty.
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
    /// A subject that is being started or adopted; `Event::Started` reports that it runs.
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

    /// Handles an event; returns the actions to take now, in this order.
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
            Event::Looked { pause } => self.looked(now, pause),
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

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// When `Event::Due` has something to do, if nothing else happens before.
    #[must_use]
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::BackingOff(_, until) | State::Restoring { step: Step::Settling(until), .. } => Some(until),
            _ if self.can_take() => self.due_time(now),
            _ => None,
        }
    }

    /// The number of the next checkpoint.
    #[must_use]
    pub fn next_sequence(&self) -> Sequence {
        self.checkpoints.next
    }

    /// The first checkpoint that is one of this program's.
    #[must_use]
    pub fn first_sequence(&self) -> Sequence {
        self.checkpoints.first
    }

    /// Checkpoints that are being written, rising.
    pub fn in_flight(&self) -> impl ExactSizeIterator<Item = Sequence> + '_ {
        self.checkpoints.in_flight.iter().copied()
    }

    /// Whether the root is being killed since another process has failed.
    #[must_use]
    pub fn has_failed_child(&self) -> bool {
        matches!(self.incarnation.killed_for, Some(KilledFor::Child(_)))
    }

    /// Which incarnation of the program this is, from 1; 0 before the first.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation.number
    }

    /// Restarts that were begun.
    #[must_use]
    pub fn restart_count(&self) -> u64 {
        self.restart_count
    }

    /// Checkpoints committed per second, of late.
    #[must_use]
    pub fn achieved_hz(&self) -> f64 {
        self.pace.achieved_hz()
    }

    /// How long the subject was stopped of late.
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

    /// No checkpoint is being taken.
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

    /// What was being written at the end may still be committed.
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
