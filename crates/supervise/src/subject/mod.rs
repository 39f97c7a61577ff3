//! The state machine of one subject: checkpoints, deaths and restarts.
//!
//! Owns: the state of one subject, and the choice of the submodule that handles an event.
//! Invariants: an event that does not fit the state changes nothing. The end of a run is final. No two checkpoints have
//! the same sequence number.
//! Does not: know how an action is carried out.

mod checkpoints;
mod death;
mod event;
mod prospect;
mod requested;
mod retries;
mod run_time;
mod survey;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use model::{Sequence, Signal};

use crate::back_off::{BackOff, BackOffPlan};
use crate::fault::Fault;
use crate::pace::{CostLimit, Pace};
use crate::restarts::{RestartLimit, Restarts};
use crate::status::{ChangedFiles, RestartPolicy, Success};
use crate::suspicion::Suspicion;
use retries::Retries;

use event::BEGINNING;
use run_time::RunTime;

pub use survey::{FileChanges, FreshReason, Prospect, Survey};

pub use event::{
    Action, Death, End, Event, Failure, LateReason, NotRestarted, NotTaken, Notice, RestoreError, Sliced,
    State, Step, StopStep,
};

/// The decisions made before a run begins.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plan {
    /// The time between two checkpoints. `None` means that no checkpoint is taken. In this case, each restart starts
    /// the program from its beginning.
    pub every: Option<Duration>,
    /// The limit of the costs of checkpoints. `None`: no limit.
    pub cost_limit: Option<CostLimit>,
    /// Whether one checkpoint after each start from the beginning is sufficient. If a checkpoint fails, the next
    /// attempt follows after `every`.
    pub once: bool,
    /// Whether periodic checkpoints begin only after the program has reported readiness.
    pub awaits_ready: bool,
    /// The deaths that are followed by a restart.
    pub restart: RestartPolicy,
    /// The ends that count as success.
    pub success: Success,
    /// The limit on restarts.
    pub limit: RestartLimit,
    /// The back-off of restarts.
    pub back_off: BackOffPlan,
    /// What a restart does about files that have changed since the checkpoint.
    pub files: ChangedFiles,
    /// The maximum age of a checkpoint to which changed files are set back.
    pub files_back_max: Duration,
    /// Whether the program can be started from its beginning. An adopted program cannot be started.
    pub can_start: bool,
    /// Whether each request to end the program is final. Otherwise, a program can ignore a request by SIGINT or SIGQUIT.
    pub ends_on_request: bool,
    /// The maximum number of checkpoints in flight.
    pub in_flight_max: usize,
}

/// The checkpoints in the store at the beginning of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beginning {
    /// The number of the next checkpoint.
    pub next: Sequence,
    /// The first checkpoint of this program. Checkpoints with lower numbers belong to earlier programs with the same
    /// name.
    pub first: Sequence,
    /// The newest checkpoint.
    pub newest: Option<Sequence>,
}

/// The state machine of one subject during one run.
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
    run_time: RunTime,
    retries: Retries,
    /// The number of restarts that were begun.
    restart_count: u64,
    /// The actions that the current event has caused so far.
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Checkpoints {
    next: Sequence,
    /// The lowest number that a checkpoint of this program can have.
    first: Sequence,
    /// The newest checkpoint that this incarnation has committed. Before the first commit: the checkpoint from which
    /// this incarnation was restored, or the newest checkpoint at the beginning of the run.
    descends: Option<Sequence>,
    /// The checkpoints in flight, in rising order.
    in_flight: VecDeque<Sequence>,
    /// Whether the log is being opened again.
    is_opening: bool,
    /// The due time of the last checkpoint that was counted as late.
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

    /// Excludes all existing checkpoints, because the program now runs from its beginning.
    fn begin_anew(&mut self) {
        self.first = self.next;
        self.descends = None;
    }

    /// Removes a checkpoint from the checkpoints in flight. Returns `false` if the checkpoint was not in flight.
    fn remove(&mut self, sequence: Sequence) -> bool {
        let place = self.in_flight.iter().position(|found| *found == sequence);
        place.and_then(|place| self.in_flight.remove(place)).is_some()
    }

    /// Advances to the next number. The log accepts each number only once, even if the checkpoint with this number has
    /// failed.
    fn advance(&mut self) {
        self.next = Sequence(self.next.get().saturating_add(1));
    }
}

/// The state of the current incarnation of the program.
#[derive(Debug)]
struct Incarnation {
    /// The number of the incarnation in this run. The first number is 1.
    number: u64,
    began: Instant,
    /// Whether the incarnation has committed a checkpoint.
    has_checkpoint: bool,
    /// Whether periodic checkpoints may be taken.
    is_ready: bool,
    /// Whether a process of the subject defers checkpoints.
    is_held: bool,
    /// Whether a process has requested a checkpoint that is not being taken yet.
    is_wanted: bool,
    request: RestartRequest,
    /// The signal that has requested the end of the subject, and the time of the request.
    ending: Option<(Signal, Instant)>,
    /// The reason for which the root is being killed; `None` if the root is not being killed.
    killed_for: Option<KilledFor>,
    /// The exit that ended the previous incarnation. `None` if the previous incarnation ended in another way.
    after: Option<Exit>,
    /// Whether the incarnation was restored from a checkpoint.
    is_restored: bool,
    /// Whether files were rolled back since the death, to a checkpoint that could not be restored.
    files_went_back: bool,
}

/// A request to restart or to hold the subject at a checkpoint of this moment.
#[derive(Clone, Copy, Default, Debug)]
struct RestartRequest {
    /// The time at which the request expires. `None` if no restart is requested, or if its checkpoint is being taken.
    by: Option<Instant>,
    /// How long the subject is held. `None` for a restart.
    holds: Option<Duration>,
    /// The reason for which the root is killed when it is resumed, if the subject is stopped for the restart.
    deferred_kill: Option<KilledFor>,
}

/// The end of an incarnation that has exited by itself, without success.
#[derive(Clone, Copy, Debug)]
struct Exit {
    code: i32,
    /// The work that the next incarnation has to repeat before it reaches the state of this exit.
    repeats: Duration,
}

/// The reason for which `undying` kills the root of a subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KilledFor {
    /// Another process of the subject has died by this signal.
    Child(Signal),
    /// A check of the guardian has found this fault of the subject.
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
            request: RestartRequest::default(),
            ending: None,
            killed_for: None,
            after: None,
            is_restored: false,
            files_went_back: false,
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
            pace: Pace::new(plan.every, plan.cost_limit, now),
            checkpoints: Checkpoints::new(beginning),
            incarnation: Incarnation::begin(0, true, now),
            restarts: Restarts::new(plan.limit),
            back_off: BackOff::new(plan.back_off),
            suspicion: Suspicion::new(plan.limit.window),
            run_time: if plan.can_start { RunTime::begin(now) } else { RunTime::adopt(now) },
            retries: Retries::default(),
            restart_count: 0,
            actions: Vec::new(),
        }
    }

    /// Handles an event. Returns actions. The caller carries out all returned actions now, in the order of the list.
    pub fn step(&mut self, now: Instant, event: Event) -> Vec<Action> {
        if matches!(self.state, State::Ended(_)) {
            self.after_end(&event, now);
            return Vec::new();
        }
        let is_stopped = matches!(self.state, State::Stopped { .. });
        if self.state.is_alive() && !is_stopped && event != Event::Continued {
            self.run_time.see(now);
        }
        match event {
            Event::Started => self.started(now),
            Event::Ready => self.incarnation.is_ready = true,
            Event::Holds(is_held) => self.holds(is_held),
            Event::Wanted => self.incarnation.is_wanted |= self.state.is_alive(),
            Event::Due => self.due(now),
            Event::Continued => self.continued(now),
            Event::Taken { ago, pause, arming, sliced, is_store_slow, besides } => {
                self.taken(now, ago, (pause, arming, besides), sliced, is_store_slow);
            }
            Event::Scanned { pause } => self.scanned(now, pause),
            Event::NotTaken(why) => self.not_taken(now, why),
            Event::LogLost => self.log_lost(),
            Event::LogOpened => self.checkpoints.is_opening = false,
            Event::LogNotOpened { is_dying } => self.log_not_opened(now, is_dying),
            Event::Committed { sequence, oldest } => self.committed(now, sequence, oldest),
            Event::WriteFailed(sequence) => self.not_committed(now, sequence, true),
            Event::CalledOff(sequence) => self.not_committed(now, sequence, false),
            // The output of a stopped program was sent before the stop.
            Event::OutputSent if is_stopped => self.run_time.output_sent(self.run_time.seen),
            Event::OutputSent if self.state.is_alive() => self.run_time.output_sent(now),
            Event::OutputSent => {}
            Event::ConnectionsEnded => self.suspicion.connections_ended(),
            Event::Differs(sequence) => self.suspicion.unusable(sequence),
            Event::RestartRequested => self.restart_requested(now),
            Event::HoldRequested(time) => self.hold_requested(now, time),
            Event::ReleaseRequested => self.release(false),
            Event::Checked(survey) => self.checked(&survey),
            Event::NotUsable => self.call_off(NotRestarted::NotUsable),
            Event::HeldResumed => self.held_resumed(now),
            Event::EndRequested(signal) => self.end_requested(now, signal),
            Event::ChildFailed(signal) => self.kill(KilledFor::Child(signal)),
            Event::Faulted(fault) => self.kill(KilledFor::Fault(fault)),
            Event::Died { status, has_terminal, after_child } => {
                after_child.iter().for_each(|sequence| self.suspicion.unusable(*sequence));
                self.died(now, status, has_terminal);
            }
            Event::Cleared => self.cleared(now),
            Event::StepFailed(error) => self.step_failed(now, error),
            Event::Surveyed(survey) => self.surveyed(now, &survey),
            Event::Restored => self.restored(now),
            Event::NotRestored(error) => self.not_restored(now, error),
            Event::NotStarted(error) => self.not_started(now, error),
            Event::Failed => self.fail(),
        }
        self.retries.note(&self.actions);
        std::mem::take(&mut self.actions)
    }

    /// Returns the state of the subject.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Reports whether the root is about to die, because the guardian kills the root for a failure of the subject.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.incarnation.killed_for.is_some()
    }

    /// Returns the time at which the caller must report `Event::Due`. Each event can change this time.
    #[must_use]
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::BackingOff(_, until) | State::Restoring { step: Step::Settling(until), .. } => Some(until),
            _ if self.retries.until.is_some() => self.retries.until,
            State::Stopped { step, .. } => step.until(),
            _ if self.can_take() => self.due_time(now),
            _ => self.incarnation.request.by,
        }
    }

    /// Returns the number of the next checkpoint.
    #[must_use]
    pub fn next_sequence(&self) -> Sequence {
        self.checkpoints.next
    }

    /// Returns the lowest number that a checkpoint of this program can have.
    #[must_use]
    pub fn first_sequence(&self) -> Sequence {
        self.checkpoints.first
    }

    /// Returns the checkpoints in flight, in rising order.
    pub fn in_flight(&self) -> impl ExactSizeIterator<Item = Sequence> + '_ {
        self.checkpoints.in_flight.iter().copied()
    }

    /// Reports whether the root is being killed because another process of the subject has failed.
    #[must_use]
    pub fn has_failed_child(&self) -> bool {
        matches!(self.incarnation.killed_for, Some(KilledFor::Child(_)))
    }

    /// Returns the number of the current incarnation: 1 for the first incarnation of the run, and 0 before the first
    /// incarnation.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation.number
    }

    /// Reports whether the program has ended its initialisation, so that periodic checkpoints are taken.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.incarnation.is_ready
    }

    /// Returns the number of restarts that were begun.
    #[must_use]
    pub fn restart_count(&self) -> u64 {
        self.restart_count
    }

    /// Returns the schedule of the checkpoints.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Reports whether the program was asked to end, so that its death ends the run, whenever it comes.
    #[must_use]
    pub fn is_asked_to_end(&self) -> bool {
        self.incarnation.ending.is_some_and(|(signal, _)| !self.is_soft(signal))
    }

    fn started(&mut self, now: Instant) {
        if !matches!(self.state, State::Starting { .. }) {
            return;
        }
        if self.incarnation.number > 0 {
            self.checkpoints.begin_anew();
            self.suspicion.begins_afresh();
            self.repeats(BEGINNING);
            self.run_time = RunTime::begin(now);
        }
        let is_ready = !self.plan.awaits_ready || !self.plan.can_start;
        self.begin_incarnation(now, is_ready);
    }

    fn begin_incarnation(&mut self, now: Instant, is_ready: bool) {
        let (ending, after) = (self.incarnation.ending.take(), self.incarnation.after.take());
        self.incarnation = Incarnation::begin(self.incarnation.number + 1, is_ready, now);
        self.incarnation.after = after;
        self.pace.begin(now);
        self.state = State::Running;
        if let Some((signal, _)) = ending {
            self.incarnation.ending = Some((signal, now));
            self.actions.push(Action::Signal(signal));
        }
    }

    fn continued(&mut self, now: Instant) {
        self.run_time.continues(now);
        self.pace.begin(now);
    }

    fn holds(&mut self, is_held: bool) {
        self.incarnation.is_held = is_held && self.state.is_alive();
        if matches!(self.state, State::Running | State::Held) {
            self.rest();
        }
    }

    /// Sets the state `Held` or `Running`, when no checkpoint is being taken.
    fn rest(&mut self) {
        self.state = if self.incarnation.is_held { State::Held } else { State::Running };
    }

    fn due(&mut self, now: Instant) {
        match self.state {
            State::BackingOff(death, until) if now >= until => self.begin_restore(death),
            State::Restoring { step: Step::Settling(until), .. } if now >= until => self.judge(),
            State::Stopped { step, .. } => {
                if step.until().is_some_and(|until| now >= until) {
                    self.call_off(NotRestarted::Late);
                }
            }
            _ if self.state.is_alive() => {
                self.expire_request(now);
                self.take_if_due(now);
            }
            _ => self.actions.extend(self.retries.due(now)),
        }
    }

    /// Handles an event after the end of the run. A checkpoint that is in flight at the end may still be committed.
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
