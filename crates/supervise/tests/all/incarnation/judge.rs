//! The invariants of a subject (a protected program), checked after every step of a simulation.
//!
//! Owns: the invariants, and the history of events that the invariants need.
//! Does not: create events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use model::Sequence;
use undying_supervise::{
    Action, ChangedFiles, End, Event, Fault, FileChanges, FreshReason, Notice, Plan, RestartPolicy,
    RestoreError, State, Step, Subject, SubjectStatus, Survey,
};

/// The number of events and action lists that a failure prints.
const SHOWN: usize = 40;
/// The longest permitted wait for a checkpoint in flight (taken, and not yet durable).
const SETTLING_MAX: Duration = Duration::from_secs(600);

/// The sequence number that means the beginning of the program.
const BEGINNING: Sequence = Sequence(0);

/// An action that was not yet answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Clear,
    Survey,
    Restore(Sequence),
    Start,
}

/// Checks the invariants, and records all events and actions.
pub(super) struct Judge {
    /// The checkpoints that must not be restored.
    pub(super) unusable: BTreeSet<Sequence>,
    seed: u64,
    base: Instant,
    plan: Plan,
    /// The most recent events and actions.
    shown: VecDeque<(Instant, Recorded)>,
    state: State,
    is_taking: bool,
    is_opening: bool,
    work: Option<Work>,
    death: LastDeath,
    /// The fault for which the root is being killed.
    fault: Option<Fault>,
    /// The sequence number that was used last.
    used: Option<Sequence>,
    restarts: (u64, VecDeque<Instant>),
    /// The time at which each checkpoint was taken, plus the time in which the program was dead or stopped since then.
    /// The sequence number 0 means the beginning of the program.
    taken: BTreeMap<Sequence, Instant>,
    /// The time at which output was sent that no usable checkpoint contained; shifted like `taken`.
    sent: BTreeSet<Sequence>,
    /// The time of the last event of a living subject.
    seen: Instant,
    /// Whether the subject has exited again with the code of the previous incarnation.
    has_ended_again: bool,
    stop: Stop,
}

/// The stop of a subject for a requested restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    None,
    /// The last checkpoint is being taken.
    Taking,
    /// The subject is stopped after this checkpoint.
    Stopped(Sequence),
    Resuming,
    /// The subject is killed, and must be restored from this checkpoint.
    Killed(Sequence),
}

/// An event, or the resulting actions with the new state.
enum Recorded {
    Event(Event),
    Actions(Vec<Action>, State),
}

/// The last death of the subject.
struct LastDeath {
    status: SubjectStatus,
    fault: Option<Fault>,
    has_terminal: bool,
    /// The first unused sequence number at the death. A checkpoint with this or a higher number is newer than the
    /// death.
    next: Sequence,
    at: Instant,
    is_end_asked: bool,
    /// The checkpoint whose restore was tried last.
    tried: Option<Sequence>,
    /// The checkpoint whose restore has failed through no fault of its own. No other step may follow.
    blameless: Option<Sequence>,
    /// The checkpoint whose restore may be repeated, although the fault is unclear.
    unclear: Option<Sequence>,
    reaches_beginning: bool,
    unchanged_from: Option<Sequence>,
    told: Vec<Sequence>,
    changes: FileChanges,
    /// The status of the death before this death.
    before: Option<SubjectStatus>,
}

impl Judge {
    pub(super) fn new(seed: u64, plan: Plan, base: Instant) -> Self {
        let death = LastDeath {
            status: SubjectStatus::Unknown,
            fault: None,
            has_terminal: false,
            next: Sequence(0),
            at: base,
            is_end_asked: false,
            tried: None,
            blameless: None,
            unclear: None,
            reaches_beginning: false,
            unchanged_from: None,
            told: Vec::new(),
            changes: FileChanges::Unknown,
            before: None,
        };
        Self {
            unusable: BTreeSet::new(),
            seed,
            base,
            plan,
            shown: VecDeque::new(),
            state: State::Starting { is_with_files: false },
            is_taking: false,
            is_opening: false,
            work: None,
            death,
            fault: None,
            used: None,
            restarts: (0, VecDeque::new()),
            taken: BTreeMap::from([(BEGINNING, base)]),
            sent: BTreeSet::new(),
            seen: base,
            has_ended_again: false,
            stop: Stop::None,
        }
    }

    /// Resets the recorded state: another guardian has adopted the subject, and does not know the findings of the first
    /// guardian.
    pub(super) fn guardian_restarted(&mut self, plan: Plan, now: Instant) {
        let (seed, base) = (self.seed, self.base);
        let (shown, used) = (std::mem::take(&mut self.shown), self.used);
        *self = Self { shown, used, ..Self::new(seed, plan, base) };
        self.death.at = now;
    }

    pub(super) fn died(&mut self, status: SubjectStatus, has_terminal: bool, next: Sequence, now: Instant) {
        let is_end_asked = self.death.is_end_asked;
        let before = self.death.fault.is_none().then_some(self.death.status);
        self.death = LastDeath {
            status,
            fault: self.fault.take(),
            has_terminal,
            next,
            at: now,
            is_end_asked,
            tried: None,
            blameless: None,
            unclear: None,
            reaches_beginning: false,
            unchanged_from: None,
            told: Vec::new(),
            changes: FileChanges::Unknown,
            before,
        };
    }

    pub(super) fn surveyed(&mut self, survey: &Survey) {
        self.death.reaches_beginning = survey.reaches_beginning;
        self.death.unchanged_from = survey.unchanged_from;
        self.death.told.clone_from(&survey.told);
        self.death.changes = survey.changes;
    }

    /// Records an event, before the subject handles the event.
    pub(super) fn received(&mut self, now: Instant, event: &Event) {
        self.keep_time(now, event);
        self.keep_stop(event);
        match event {
            Event::Taken { .. } | Event::Scanned { .. } | Event::NotTaken(_) => self.is_taking = false,
            Event::LogLost => self.is_taking = false,
            Event::LogOpened | Event::LogNotOpened { .. } => self.is_opening = false,
            Event::EndRequested(_) => self.death.is_end_asked = true,
            Event::Differs(sequence) => {
                self.unusable.insert(*sequence);
            }
            Event::NotRestored(error) => {
                if let Some(Work::Restore(sequence)) = self.work.take() {
                    match error {
                        RestoreError::NotNow | RestoreError::Configuration => {
                            self.death.blameless = Some(sequence);
                        }
                        RestoreError::Unclear => self.death.unclear = Some(sequence),
                        _ => drop(self.unusable.insert(sequence)),
                    }
                }
            }
            Event::StepFailed(_)
            | Event::Cleared
            | Event::Surveyed(_)
            | Event::Restored
            | Event::Started
            | Event::NotStarted(_) => {
                self.work = None;
            }
            _ => {}
        }
        self.show(now, Recorded::Event(event.clone()));
    }

    /// Keeps the stop of the subject for a requested restart.
    fn keep_stop(&mut self, event: &Event) {
        self.stop = match (self.stop, event) {
            (Stop::Taking, Event::Taken { .. }) => self.used.map_or(Stop::None, Stop::Stopped),
            (Stop::Taking, Event::Scanned { .. } | Event::NotTaken(_) | Event::LogLost)
            | (Stop::Stopped(_) | Stop::Resuming, Event::Died { .. } | Event::HeldResumed)
            // After the death, an operator can request the end, or a process cannot be ended.
            | (Stop::Killed(_), Event::EndRequested(_) | Event::Failed | Event::StepFailed(_)) => Stop::None,
            (stop, _) => stop,
        };
    }

    /// Keeps the times at which checkpoints were taken.
    fn keep_time(&mut self, now: Instant, event: &Event) {
        let shift = match (event, self.work) {
            (Event::Taken { .. }, _) => {
                self.taken.extend(self.used.map(|used| (used, now)));
                Duration::ZERO
            }
            (Event::OutputSent, _) if self.state.is_alive() => {
                let sent = if self.is_stopped() { self.seen } else { now };
                let before = self.taken.iter().filter(|(_, taken)| **taken < sent);
                self.sent.extend(before.map(|(sequence, _)| *sequence));
                Duration::ZERO
            }
            (Event::Continued | Event::HeldResumed, _) if self.state.is_alive() => now - self.seen,
            (Event::Died { .. }, _) if self.is_stopped() => now - self.seen,
            (Event::Restored, Some(Work::Restore(sequence))) => {
                self.taken.get(&sequence).map_or(Duration::ZERO, |taken| now - *taken)
            }
            (Event::Started, Some(Work::Start)) => {
                (self.taken, self.sent) = (BTreeMap::from([(BEGINNING, now)]), BTreeSet::new());
                Duration::ZERO
            }
            _ => Duration::ZERO,
        };
        self.taken.values_mut().for_each(|time| *time += shift);
        if let (Event::Restored, Some(Work::Restore(sequence))) = (event, self.work) {
            // Peers keep what they have received after older checkpoints.
            self.sent.retain(|known| *known < sequence);
        }
        if self.state.is_alive() && !self.is_stopped() || *event == Event::HeldResumed {
            self.seen = now;
        }
    }

    fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped { .. })
    }

    /// Asserts that setting files back to a checkpoint discards no more than the plan permits.
    fn check_age(&self, sequence: Sequence) {
        let is_bound = self.plan.files == ChangedFiles::Rewind
            && self.death.unchanged_from.is_none_or(|from| sequence < from);
        if let Some(taken) = self.taken.get(&sequence).filter(|_| is_bound) {
            let age = self.death.at.saturating_duration_since(*taken);
            self.assert(age <= self.plan.files_back_max, "files are set back too far");
            let is_behind = self.sent.contains(&sequence);
            self.assert(!is_behind, "files are set back past output that was sent");
            let is_told = self.death.told.contains(&sequence);
            self.assert(!is_told, "files are set back past durable data that a peer may rely on");
        }
    }

    /// Checks all invariants after a step.
    pub(super) fn check(
        &mut self,
        subject: &Subject,
        now: Instant,
        actions: &[Action],
        store: &BTreeSet<Sequence>,
        exact: &BTreeSet<Sequence>,
    ) {
        let state = subject.state();
        self.show(now, Recorded::Actions(actions.to_vec(), state));
        let is_of_dead = |action: &Action| {
            let clear = matches!(action, Action::Clear | Action::Survey | Action::LeaveBehind { .. });
            clear || matches!(action, Action::Restore(_) | Action::Start { .. })
        };
        let is_of_living = |action: &Action| {
            let takes = matches!(action, Action::Take(_) | Action::TakeAndHold(_) | Action::Check(_));
            let kills = matches!(action, Action::KillRoot | Action::Signal(_));
            takes || kills || matches!(action, Action::KillHeld | Action::ResumeHeld)
        };
        let contradict = actions.iter().any(is_of_dead) && actions.iter().any(is_of_living);
        self.assert(!contradict, "actions for a living subject and for a dead one");
        for action in actions {
            self.check_action(action, subject, store, exact);
        }
        self.check_state(subject, state, now);
        if matches!(self.state, State::Starting { .. } | State::Restoring { .. }) && state.is_alive() {
            self.death.is_end_asked = actions.iter().any(|action| matches!(action, Action::Signal(_)));
        }
        self.state = state;
    }

    fn check_action(
        &mut self,
        action: &Action,
        subject: &Subject,
        store: &BTreeSet<Sequence>,
        exact: &BTreeSet<Sequence>,
    ) {
        let is_alive = subject.state().is_alive();
        let is_of_checkpoints = matches!(
            action,
            Action::Take(_)
                | Action::TakeAndHold(_)
                | Action::Survey
                | Action::LeaveBehind { .. }
                | Action::Restore(_)
        );
        self.assert(self.plan.every.is_some() || !is_of_checkpoints, "there are no checkpoints");
        match action {
            Action::Take(sequence) | Action::TakeAndHold(sequence) => {
                self.check_take(*sequence, subject, matches!(action, Action::TakeAndHold(_)));
            }
            Action::Check(sequence) => {
                let is_durable = store.contains(sequence) && self.stop == Stop::Stopped(*sequence);
                self.assert(is_durable, "a checkpoint is checked that is not that of the stop");
            }
            Action::KillHeld => self.check_kill_held(),
            Action::ResumeHeld => {
                self.assert(matches!(self.stop, Stop::Stopped(_)), "a subject that runs is resumed");
                self.stop = Stop::Resuming;
            }
            Action::OpenLog => {
                self.assert(!self.is_taking && !self.is_opening, "the log is opened beside other work");
                self.assert(subject.in_flight().len() == 0, "what a lost log was writing is in flight");
                self.is_opening = true;
            }
            Action::KillRoot | Action::Signal(_) => self.assert(is_alive, "a signal to a dead subject"),
            Action::Clear => self.begin_work(Work::Clear, is_alive),
            Action::Survey => self.begin_work(Work::Survey, is_alive),
            Action::Restore(sequence) => {
                self.check_restore(*sequence, subject, store, exact);
                self.death.blameless.take_if(|blameless| blameless == sequence);
                self.begin_work(Work::Restore(*sequence), is_alive);
                self.death.tried = Some(*sequence);
            }
            Action::Start { is_with_files, why } => self.check_start(*is_with_files, *why, subject),
            Action::Report(Notice::Faulted(fault)) => {
                self.assert(is_alive && self.fault.is_none(), "a subject is killed twice for faults");
                self.fault = Some(*fault);
            }
            Action::Report(Notice::Poisoned(sequence)) => {
                let is_own = self.death.fault.is_none_or(Fault::is_own);
                self.assert(is_own, "a checkpoint is blamed for the death of another subject");
                self.unusable.insert(*sequence);
            }
            Action::Report(Notice::EndedAgain(status)) => {
                let is_own = self.death.fault.is_none() && *status == self.death.status;
                let is_same = self.death.before == Some(*status) && status.exit().is_some();
                let is_failure =
                    self.plan.restart == RestartPolicy::OnFailure && !self.plan.success.has(*status);
                self.assert(is_own && is_same && is_failure, "it has not ended again");
                self.has_ended_again = true;
            }
            Action::LeaveBehind { .. } | Action::Late(..) | Action::Report(_) => {}
        }
    }

    fn check_take(&mut self, sequence: Sequence, subject: &Subject, is_held: bool) {
        self.assert(self.fault.is_none(), "a checkpoint is taken of a faulty subject");
        let is_free = !self.is_taking && !self.is_opening && self.work.is_none();
        self.assert(is_free && subject.state().is_alive(), "a checkpoint is taken beside other work");
        self.assert(self.state != State::Held, "a checkpoint is taken of a held subject");
        self.assert(self.used.is_none_or(|used| used <= sequence), "a number is used again");
        self.assert(subject.in_flight().len() < self.plan.in_flight_max, "too many in flight");
        self.assert(self.stop == Stop::None, "a checkpoint is taken beside a requested restart");
        (self.is_taking, self.used) = (true, Some(sequence));
        if is_held {
            self.assert(subject.in_flight().len() == 0, "a stopped subject waits for older checkpoints");
            self.stop = Stop::Taking;
        }
    }

    fn check_kill_held(&mut self) {
        let Stop::Stopped(sequence) = self.stop else { self.fail("a subject that runs is killed") };
        self.stop = Stop::Killed(sequence);
    }

    fn check_start(&mut self, is_with_files: bool, why: Option<FreshReason>, subject: &Subject) {
        self.assert(!matches!(self.stop, Stop::Killed(_)), "a requested restart loses all work");
        self.assert(self.plan.can_start, "an adopted program is started");
        let goes_back = self.plan.files == ChangedFiles::Rewind && self.death.reaches_beginning;
        self.assert(!is_with_files || goes_back, "files go back where they cannot");
        if is_with_files {
            self.check_age(BEGINNING);
        } else if self.plan.files == ChangedFiles::Rewind {
            let is_untouched = match why {
                // Only the last attempt is known here. It has changed no file.
                Some(FreshReason::FilesStay(_)) => true,
                _ => self.death.tried.is_none(),
            };
            self.assert(is_untouched, "the program begins beside files of a later checkpoint");
        }
        self.assert(subject.in_flight().len() == 0, "a start beside checkpoints in flight");
        self.begin_work(Work::Start, subject.state().is_alive());
    }

    fn check_restore(
        &mut self,
        sequence: Sequence,
        subject: &Subject,
        store: &BTreeSet<Sequence>,
        exact: &BTreeSet<Sequence>,
    ) {
        if let Stop::Killed(last) = std::mem::replace(&mut self.stop, Stop::None) {
            self.assert(last == sequence, "a requested restart loses work");
        }
        let is_exact = self.plan.files != ChangedFiles::Rewind || exact.contains(&sequence);
        self.assert(store.contains(&sequence), "a checkpoint is restored that is not committed");
        self.assert(is_exact, "a checkpoint is restored that files cannot be rolled back to");
        let is_beside_changes = match self.death.changes {
            FileChanges::Unknown => false,
            FileChanges::NoneSince(oldest) => sequence < oldest,
            FileChanges::AfterNewest => true,
        };
        self.assert(!is_beside_changes, "memory is restored beside files that have changed");
        self.assert(sequence >= subject.first_sequence(), "a checkpoint of another program is restored");
        self.assert(sequence < self.death.next, "a checkpoint is restored that is newer than the death");
        self.assert(!self.unusable.contains(&sequence), "a checkpoint is restored that is not to be used");
        let repeated = self.death.blameless.or(self.death.unclear);
        let is_older = self.death.tried.is_none_or(|tried| sequence < tried);
        // After deaths in a row, newer checkpoints are skipped. They are tried if no older checkpoint can be restored.
        let is_last_resort = !store.range(..sequence).any(|older| {
            *older >= subject.first_sequence()
                && !self.unusable.contains(older)
                && (self.plan.files != ChangedFiles::Rewind || exact.contains(older))
        });
        self.assert(
            is_older || repeated == Some(sequence) || is_last_resort,
            "a later checkpoint is tried after an earlier one",
        );
        self.assert(subject.in_flight().len() == 0, "a restore beside checkpoints in flight");
        self.check_age(sequence);
    }

    fn begin_work(&mut self, work: Work, is_alive: bool) {
        let is_blamed = self.death.blameless.is_some();
        self.assert(!is_blamed, "a checkpoint is given up for a failure that is not its fault");
        self.assert(!is_alive, "work on a dead subject that lives");
        self.assert(self.work.is_none(), "two things are done at once");
        self.assert(!self.is_taking, "work on a dead subject that is being checkpointed");
        self.work = Some(work);
    }

    fn check_state(&mut self, subject: &Subject, state: State, now: Instant) {
        match state {
            State::BackingOff(_, until) => {
                let is_bounded = until.saturating_duration_since(now) <= self.plan.back_off.longest;
                self.assert(is_bounded, "a back-off is too long");
            }
            State::Restoring { step: Step::Settling(until), death, .. } => {
                self.assert(until <= death.noticed + SETTLING_MAX, "a wait is too long");
            }
            State::Ended(End::Over(_)) => {
                let is_meant = match self.death.fault {
                    Some(Fault::Requested) => false,
                    Some(_) => self.plan.restart == RestartPolicy::Never,
                    None => !self.plan.restart.restarts(self.death.status, self.plan.success),
                };
                let is_meant = is_meant || self.has_ended_again;
                let is_asked = self.death.is_end_asked || self.death.has_terminal;
                // The failure of a child counts as the root's status. The policy may require no restart for this
                // status.
                let is_of_child = self.death.fault.is_none()
                    && matches!(self.death.status, SubjectStatus::Killed(signal) if signal.get() == 9);
                self.assert(is_meant || is_asked || is_of_child, "a restart was due");
            }
            _ => {}
        }
        let in_flight: Vec<Sequence> = subject.in_flight().collect();
        self.assert(in_flight.is_sorted(), "checkpoints in flight are out of order");
        self.assert(in_flight.len() <= self.plan.in_flight_max, "too many are in flight");
        self.count_restart(subject.restart_count());
    }

    fn count_restart(&mut self, count: u64) {
        let (before, times) = &mut self.restarts;
        if count == *before {
            return;
        }
        *before = count;
        if self.death.fault.is_some_and(|fault| !fault.is_own()) {
            return;
        }
        let (at, limit) = (self.death.at, self.plan.limit);
        times.push_back(at);
        while times.front().is_some_and(|time| at.duration_since(*time) > limit.window) {
            times.pop_front();
        }
        let is_allowed = times.len() <= limit.count;
        self.assert(is_allowed, "more restarts than the limit allows");
    }

    /// Checks that the subject waits for an answer, for a deadline, or for its own death.
    pub(super) fn is_not_stuck(&self, subject: &Subject, wake: Option<Instant>, coming: usize) {
        self.assert(wake.is_some() || coming > 0, "nothing can happen any more");
        let waits = self.work.is_some() || wake.is_some() || subject.state().is_alive();
        self.assert(waits, "it waits for nothing");
    }

    pub(super) fn is_final(&self, subject: &Subject, end: State, actions: &[Action]) {
        self.assert(actions.is_empty() && subject.state() == end, "an end is not final");
    }

    fn show(&mut self, now: Instant, recorded: Recorded) {
        if self.shown.len() == SHOWN {
            self.shown.pop_front();
        }
        self.shown.push_back((now, recorded));
    }

    #[track_caller]
    fn assert(&self, holds: bool, what: &str) {
        if !holds {
            self.fail(what);
        }
    }

    #[track_caller]
    pub(super) fn fail(&self, what: &str) -> ! {
        let mut text = format!("seed {}: {what}; {:?}\n", self.seed, self.plan);
        for (time, recorded) in &self.shown {
            let at = time.duration_since(self.base).as_secs_f64();
            let _ = match recorded {
                Recorded::Event(event) => writeln!(text, "{at:12.6} {event:?}"),
                Recorded::Actions(actions, state) => writeln!(text, "             -> {actions:?} {state:?}"),
            };
        }
        panic!("{text}");
    }
}
