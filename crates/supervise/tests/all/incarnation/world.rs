//! A simulated machine for one subject (a protected program): the program dies, and tracer, log and store fail.
//!
//! Owns: the simulated events, their times, and the answers to the actions of the subject
//! (`undying_supervise::Subject`).
//! Invariants: all randomness comes from the seed. The simulation keeps the guarantees of a real guardian (the process
//! that supervises a subject): for example, the outcome of a checkpoint is reported before the death.
//! Does not: check invariants; `judge` does.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fastrand::Rng;
use model::{Sequence, Signal};
use undying_supervise::{
    Action, Beginning, ChangedFiles, End, Event, Fault, FileChanges, FreshReason, NotTaken, Notice, Plan,
    RestoreError, Sliced, State, StopStep, Subject, SubjectStatus, Survey,
};

use super::judge::Judge;
use super::plans::{kept, plan};

/// The number of events before the subject is asked to end.
const STEPS: usize = 150;
/// The maximum number of events between the first request to end and the end.
const LAST_STEPS: usize = 200;
/// The number of checkpoints that the store keeps.
const KEPT: usize = 4;
/// The unit for lifetimes of subjects without checkpoints.
const UNCHECKPOINTED: Duration = Duration::from_millis(200);
const TERM: Signal = Signal(15);
/// The statuses with which programs end.
const ENDS: [SubjectStatus; 8] = [
    SubjectStatus::Exited(0),
    SubjectStatus::Exited(1),
    SubjectStatus::Killed(Signal(2)),
    SubjectStatus::Killed(Signal(9)),
    SubjectStatus::Killed(Signal(11)),
    SubjectStatus::Killed(Signal(11)),
    SubjectStatus::Killed(TERM),
    SubjectStatus::Unknown,
];

/// The number of occurrences of each type of event.
#[derive(Default, Debug)]
pub(super) struct Counts {
    steps: u64,
    checkpoints: u64,
    deaths: u64,
    restores: u64,
    failed_restores: u64,
    fresh_starts: u64,
    back_offs: u64,
    guardian_restarts: u64,
    faults: u64,
    logs_lost: u64,
    ended: u64,
    gave_up: u64,
    failed: u64,
    too_old: u64,
    ended_again: u64,
    requested: u64,
    called_off: u64,
}

impl Counts {
    fn all(&mut self) -> [&mut u64; 17] {
        let Self { steps, checkpoints, deaths, restores, failed_restores, fresh_starts, .. } = self;
        let Self { back_offs, guardian_restarts, faults, logs_lost, ended, gave_up, failed, .. } = self;
        let Self { too_old, ended_again, requested, called_off, .. } = self;
        [
            steps,
            checkpoints,
            deaths,
            restores,
            failed_restores,
            fresh_starts,
            back_offs,
            guardian_restarts,
            faults,
            logs_lost,
            ended,
            gave_up,
            failed,
            too_old,
            ended_again,
            requested,
            called_off,
        ]
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.checkpoints += other.checkpoints;
        self.deaths += other.deaths;
        self.restores += other.restores;
        self.failed_restores += other.failed_restores;
        self.fresh_starts += other.fresh_starts;
        self.back_offs += other.back_offs;
        self.guardian_restarts += other.guardian_restarts;
        self.faults += other.faults;
        self.logs_lost += other.logs_lost;
        self.ended += other.ended;
        self.gave_up += other.gave_up;
        self.failed += other.failed;
        self.too_old += other.too_old;
        self.ended_again += other.ended_again;
        self.requested += other.requested;
        self.called_off += other.called_off;
    }

    /// Asserts that each counted event has occurred. An event that never occurs is not tested.
    pub(super) fn assert_all_seen(&mut self) {
        let text = format!("{self:?}");
        assert!(self.all().into_iter().all(|count| *count > 0), "{text}");
    }
}

/// A future event.
#[derive(Clone, Debug)]
enum Coming {
    /// The root process ends.
    Death(SubjectStatus),
    /// An event is reported to the subject.
    Report(Event),
    /// The log writes a checkpoint, or fails to write the checkpoint.
    Write(Sequence),
    /// A signal requests the end. Most programs end.
    EndRequest(Signal),
    /// A child process fails.
    ChildFailure,
    /// The guardian is killed, and another guardian adopts the subject.
    GuardianRestart,
}

/// The simulated machine.
pub(super) struct World {
    pub(super) counts: Counts,
    random: Rng,
    now: Instant,
    subject: Subject,
    judge: Judge,
    coming: Vec<(Instant, Coming)>,
    store: BTreeSet<Sequence>,
    exact: BTreeSet<Sequence>,
    /// The next sequence number. All used numbers are lower.
    next: Sequence,
    child_failed_at: Option<Sequence>,
    /// The list of checkpoints that was checked before a requested death. No list after the death differs from it.
    checked: Option<Survey>,
    plan: Plan,
}

impl World {
    pub(super) fn new(seed: u64, base: Instant) -> Self {
        let mut random = Rng::with_seed(seed);
        let plan = plan(&mut random);
        let (first, next) = (Sequence(random.u64(1..5)), Sequence(random.u64(5..8)));
        let store: BTreeSet<Sequence> = (1..next.get()).filter(|_| random.bool()).map(Sequence).collect();
        let beginning = Beginning { next, first, newest: store.last().copied() };
        // A subject either is adopted with its own checkpoints, or is started with checkpoints of other programs in the
        // store.
        let beginning = if plan.can_start { Beginning { first: next, ..beginning } } else { beginning };
        let subject = Subject::new(plan, beginning, base);
        let judge = Judge::new(seed, plan, base);
        Self {
            counts: Counts::default(),
            random,
            now: base,
            subject,
            judge,
            coming: Vec::new(),
            exact: store.clone(),
            store,
            next,
            child_failed_at: None,
            checked: None,
            plan,
        }
    }

    /// Simulates the subject until its end.
    pub(super) fn live(&mut self) {
        self.report(Event::Started);
        for step in 0..STEPS + LAST_STEPS {
            if matches!(self.subject.state(), State::Ended(_)) {
                return self.after_end();
            }
            if step >= STEPS && step % 20 == 0 {
                self.happen(Coming::EndRequest(TERM));
                continue;
            }
            self.next_thing();
        }
        self.judge.fail("it does not end");
    }

    /// Advances the time to the next event and handles the event.
    fn next_thing(&mut self) {
        let earliest = (0..self.coming.len()).min_by_key(|index| self.coming[*index].0);
        let wake = self.subject.wake(self.now);
        self.judge.is_not_stuck(&self.subject, wake, self.coming.len());
        match (earliest, wake) {
            (Some(index), wake) if wake.is_none_or(|wake| self.coming[index].0 < wake) => {
                let (time, thing) = self.coming.swap_remove(index);
                self.now = self.now.max(time);
                self.happen(thing);
            }
            (_, Some(wake)) => {
                // Occasionally, the event loop is late.
                let late = if self.random.u8(..20) == 0 { self.delay() } else { Duration::ZERO };
                self.now = self.now.max(wake) + late;
                self.report(Event::Due);
            }
            (_, None) => {}
        }
    }

    fn happen(&mut self, thing: Coming) {
        match thing {
            Coming::Report(event) => self.report(event),
            Coming::Death(status) if self.is_alive() => self.die(status),
            Coming::EndRequest(signal) => {
                self.report(Event::EndRequested(signal));
                if self.is_alive() && self.random.u8(..4) > 0 {
                    self.come_soon(Coming::Death(SubjectStatus::Killed(signal)));
                }
            }
            Coming::ChildFailure if self.is_alive() => {
                let is_killing =
                    matches!(self.subject.state(), State::Stopped { step: StopStep::Killing, .. });
                if is_killing {
                    // The children are killed together with the root.
                    return self.report(Event::ChildFailed(Signal(9)));
                }
                self.child_failed_at
                    .get_or_insert(Sequence(self.next.get().saturating_sub(self.random.u64(..2))));
                self.report(Event::ChildFailed(Signal(11)));
            }
            Coming::GuardianRestart if self.is_alive() => self.restart_guardian(),
            Coming::Write(sequence) => self.write(sequence),
            Coming::Death(_) | Coming::ChildFailure | Coming::GuardianRestart => {}
        }
        // `Due` follows only sometimes, so that several events are handled together.
        if self.random.bool() {
            self.report(Event::Due);
        }
    }

    fn is_alive(&self) -> bool {
        self.subject.state().is_alive()
    }

    /// Reports the outcome of a checkpoint that is being taken, then the death.
    fn die(&mut self, status: SubjectStatus) {
        let is_answer =
            |(_, thing): &(Instant, Coming)| matches!(thing, Coming::Report(event) if answers_take(event));
        if let Some(index) = self.coming.iter().position(is_answer) {
            let (_, thing) = self.coming.swap_remove(index);
            let event = match thing {
                Coming::Report(event @ Event::Taken { .. }) if self.random.bool() => event,
                _ => Event::NotTaken(NotTaken::Dying),
            };
            self.report(event);
        }
        // The death is reported when no thread of the guardian traces or checks the subject.
        while let Some(index) = self.coming.iter().position(|(_, thing)| answers_stop(thing)) {
            let (_, thing) = self.coming.swap_remove(index);
            if let Coming::Report(event) = thing {
                self.report(event);
            }
        }
        if !self.is_alive() {
            return;
        }
        self.counts.deaths += 1;
        let failed_at = self.child_failed_at.take().unwrap_or(self.next);
        let after_child: Vec<Sequence> = (failed_at.get()..self.next.get()).map(Sequence).collect();
        self.judge.unusable.extend(&after_child);
        let has_terminal = self.random.u8(..10) == 0;
        self.judge.died(status, has_terminal, self.next, self.now);
        self.report(Event::Died { status, has_terminal, after_child });
    }

    fn write(&mut self, sequence: Sequence) {
        if self.random.u8(..8) == 0 {
            return self.report(Event::WriteFailed(sequence));
        }
        self.store.insert(sequence);
        while self.store.len() > KEPT {
            self.store.pop_first();
        }
        self.counts.checkpoints += 1;
        self.report(Event::Committed { sequence, oldest: self.store.first().copied() });
    }

    fn restart_guardian(&mut self) {
        self.counts.guardian_restarts += 1;
        let plan = Plan { can_start: false, files: kept(&mut self.random), ..self.plan };
        self.plan = plan;
        let first = self.subject.first_sequence();
        let beginning = Beginning { next: self.next, first, newest: self.store.last().copied() };
        self.coming.retain(|(_, thing)| matches!(thing, Coming::Death(_)));
        self.subject = Subject::new(plan, beginning, self.now);
        self.child_failed_at = None;
        self.judge.guardian_restarted(plan, self.now);
        self.report(Event::Started);
    }

    /// Reports an event to the subject, and carries out the resulting actions.
    fn report(&mut self, event: Event) {
        self.counts.steps += 1;
        self.note(&event);
        let before = self.subject.state();
        self.judge.received(self.now, &event);
        let actions = self.subject.step(self.now, event);
        self.judge.check(&self.subject, self.now, &actions, &self.store, &self.exact);
        for action in &actions {
            self.carry_out(action);
        }
        if !before.is_alive() && self.is_alive() {
            self.begin_incarnation();
        }
        if self.subject.state() != before {
            self.count_state();
        }
    }

    /// Updates the simulated state for an event.
    fn note(&mut self, event: &Event) {
        let is_used = match event {
            Event::Taken { .. } => {
                let sequence = self.next;
                self.come_later(Coming::Write(sequence));
                if self.random.u8(..3) > 0 {
                    self.exact.insert(sequence);
                }
                true
            }
            Event::NotTaken(why) => *why != NotTaken::Behind,
            Event::LogNotOpened { .. } => true,
            _ => false,
        };
        if is_used {
            self.next = Sequence(self.next.get() + 1);
        }
    }

    fn begin_incarnation(&mut self) {
        let lives = self.plan.every.unwrap_or(UNCHECKPOINTED).mul_f64(self.random.f64() * 8.0);
        let fault = Fault::ALL[self.random.usize(..Fault::ALL.len())];
        let status = ENDS[self.random.usize(..ENDS.len())];
        self.coming.push((self.now + lives, Coming::Death(status)));
        let others = [
            (20, Coming::Report(Event::Ready)),
            (3, Coming::Report(Event::Wanted)),
            (3, Coming::Report(Event::RestartRequested)),
            (2, Coming::Report(Event::Holds(true))),
            (2, Coming::Report(Event::Continued)),
            (1, Coming::Report(Event::OutputSent)),
            (2, Coming::EndRequest(Signal(2))),
            (1, Coming::EndRequest(TERM)),
            (2, Coming::ChildFailure),
            (3, Coming::Report(Event::Faulted(fault))),
            (2, Coming::GuardianRestart),
        ];
        for (chance, thing) in others {
            if self.random.u8(..20) < chance {
                let at = self.now + lives.mul_f64(self.random.f64());
                self.coming.push((at, thing));
            }
        }
    }

    fn carry_out(&mut self, action: &Action) {
        match action {
            Action::Take(_) | Action::TakeAndHold(_) => {
                let answer = self.answer_to_take();
                self.come_soon(Coming::Report(answer));
            }
            Action::OpenLog => {
                self.counts.logs_lost += 1;
                self.coming.retain(|(_, thing)| !matches!(thing, Coming::Write(_)));
                let is_dying = !self.is_alive();
                let failed = self.random.u8(..4) == 0;
                let answer = if failed { Event::LogNotOpened { is_dying } } else { Event::LogOpened };
                self.come_later(Coming::Report(answer));
            }
            Action::KillRoot => self.come_soon(Coming::Death(SubjectStatus::Killed(Signal(9)))),
            Action::Check(_) => {
                let event = match self.random.u8(..8) {
                    0 => Event::NotUsable,
                    _ => Event::Checked(self.survey()),
                };
                self.checked = if let Event::Checked(survey) = &event { Some(survey.clone()) } else { None };
                self.come_soon(Coming::Report(event));
            }
            Action::KillHeld => {
                self.counts.requested += 1;
                self.come_soon(Coming::Death(SubjectStatus::Killed(Signal(9))));
            }
            Action::ResumeHeld => {
                self.checked = None;
                self.counts.called_off += 1;
                self.come_soon(Coming::Report(Event::HeldResumed));
            }
            Action::Signal(signal) => self.come_soon(Coming::Death(SubjectStatus::Killed(*signal))),
            Action::Clear => {
                let event = match self.random.u8(..100) {
                    0 => Event::Failed,
                    1..6 => Event::StepFailed(self.passing()),
                    _ => Event::Cleared,
                };
                self.come_later(Coming::Report(event));
            }
            Action::Survey => {
                if self.random.u8(..20) == 0 {
                    let event = Event::StepFailed(self.passing());
                    self.come_soon(Coming::Report(event));
                    return;
                }
                let survey = self.checked.take().unwrap_or_else(|| self.survey());
                self.judge.surveyed(&survey);
                self.come_soon(Coming::Report(Event::Surveyed(survey)));
            }
            Action::LeaveBehind { dropped, .. } => self.leave_behind(dropped),
            Action::Restore(sequence) => self.restore(*sequence),
            Action::Start { is_with_files, why } => {
                self.counts.too_old += u64::from(matches!(why, Some(FreshReason::TooOld(_))));
                self.start(*is_with_files);
            }
            Action::Report(Notice::Faulted(_)) => self.counts.faults += 1,
            Action::Report(Notice::EndedAgain(_)) => self.counts.ended_again += 1,
            Action::Late(..) | Action::Report(_) => {}
        }
    }

    fn answer_to_take(&mut self) -> Event {
        let pause = Duration::from_micros(self.random.u64(..5_000));
        match self.random.u8(..20) {
            0 => Event::NotTaken(NotTaken::Behind),
            1 => Event::NotTaken(NotTaken::TrackerReplaced),
            2 | 3 => Event::NotTaken(NotTaken::Refused),
            4 => Event::LogLost,
            5 => Event::Scanned { pause },
            _ => {
                let sliced = self.random.bool().then_some(Sliced { longest: pause, total: pause * 20 });
                let (ago, arming) = (Duration::ZERO, Duration::ZERO);
                let besides = pause * self.random.u32(..10);
                Event::Taken { ago, pause, arming, sliced, is_store_slow: self.random.bool(), besides }
            }
        }
    }

    fn survey(&mut self) -> Survey {
        let committed: Vec<Sequence> = self.store.iter().copied().collect();
        let exact: Vec<Sequence> = self.exact.iter().copied().collect();
        let unchanged_from =
            (self.random.u8(..4) == 0 && !exact.is_empty()).then(|| exact[self.random.usize(..exact.len())]);
        // What was told after a checkpoint was also told after each older checkpoint.
        let told =
            self.random.u64(..8).checked_sub(6).map_or(0, |later| self.next.get().saturating_sub(later));
        let told = (0..told).map(Sequence).collect();
        let is_noticed = matches!(self.plan.files, ChangedFiles::Fresh | ChangedFiles::Refuse);
        let changes = match self.random.u8(..4) {
            0 if is_noticed => FileChanges::AfterNewest,
            1 if is_noticed => {
                let at = self.random.usize(..committed.len().max(1));
                committed.get(at).map_or(FileChanges::AfterNewest, |at| FileChanges::NoneSince(*at))
            }
            _ => FileChanges::Unknown,
        };
        let reaches_beginning = self.random.bool();
        Survey { committed, exact, reaches_beginning, unchanged_from, told, changes }
    }

    /// Invalidates checkpoints. Some of these checkpoints are already complete in the store, and their commit is
    /// reported too late.
    fn leave_behind(&mut self, dropped: &[Sequence]) {
        self.coming.retain(|(_, thing)| !matches!(thing, Coming::Write(_)));
        for sequence in dropped {
            self.judge.unusable.insert(*sequence);
            let event = if self.random.bool() {
                self.store.insert(*sequence);
                Event::Committed { sequence: *sequence, oldest: None }
            } else {
                Event::CalledOff(*sequence)
            };
            self.come_later(Coming::Report(event));
        }
    }

    fn restore(&mut self, sequence: Sequence) {
        let event = match self.random.u8(..12) {
            0..=2 => Event::NotRestored(RestoreError::Unusable),
            3 => Event::NotRestored(RestoreError::FilesChanged),
            4 => Event::NotRestored(RestoreError::FilesStay),
            5 if self.random.bool() => Event::NotRestored(RestoreError::FilesHalfWay),
            6..8 => Event::NotRestored(self.passing()),
            _ => Event::Restored,
        };
        match event {
            Event::Restored => self.counts.restores += 1,
            _ => self.counts.failed_restores += 1,
        }
        if self.plan.files == ChangedFiles::Rewind {
            // A rollback removes later changes from the undo log.
            self.exact.retain(|exact| *exact <= sequence);
        }
        self.come_later(Coming::Report(event));
    }

    /// Returns the error of a step that may succeed when it is repeated.
    fn passing(&mut self) -> RestoreError {
        let errors = [RestoreError::NotNow, RestoreError::Unclear, RestoreError::Configuration];
        errors[self.random.usize(..errors.len())]
    }

    fn start(&mut self, is_with_files: bool) {
        self.counts.fresh_starts += 1;
        let event = match self.random.u8(..9) {
            8 => Event::NotStarted(self.passing()),
            0 if is_with_files => Event::NotStarted(RestoreError::FilesStay),
            1 if is_with_files => Event::NotStarted(RestoreError::FilesHalfWay),
            2 if self.random.u8(..10) == 0 => Event::Failed,
            _ => Event::Started,
        };
        self.come_later(Coming::Report(event));
    }

    fn count_state(&mut self) {
        match self.subject.state() {
            State::BackingOff(..) => self.counts.back_offs += 1,
            State::Ended(End::Over(_)) => self.counts.ended += 1,
            State::Ended(End::GaveUp(_)) => self.counts.gave_up += 1,
            State::Ended(_) => self.counts.failed += 1,
            _ => {}
        }
    }

    /// Checks that the end is final, although further events are reported.
    fn after_end(&mut self) {
        let end = self.subject.state();
        let late = [
            Event::Due,
            Event::Started,
            Event::Restored,
            Event::Cleared,
            Event::Wanted,
            Event::Committed { sequence: self.next, oldest: None },
            Event::Died { status: SubjectStatus::Exited(1), has_terminal: false, after_child: Vec::new() },
        ];
        for event in late {
            let actions = self.subject.step(self.now, event);
            self.judge.is_final(&self.subject, end, &actions);
        }
    }

    /// Returns a random delay: mostly short, rarely minutes.
    fn delay(&mut self) -> Duration {
        let most = [1, 1, 10, 10, 100, 1_000, 20_000, 200_000][self.random.usize(..8)];
        Duration::from_micros(self.random.u64(..most * 1_000))
    }

    fn come_later(&mut self, thing: Coming) {
        let at = self.now + self.delay();
        self.coming.push((at, thing));
    }

    fn come_soon(&mut self, thing: Coming) {
        let at = self.now + Duration::from_micros(self.random.u64(..20_000));
        self.coming.push((at, thing));
    }
}

fn answers_stop(thing: &Coming) -> bool {
    matches!(thing, Coming::Report(Event::Checked(_) | Event::NotUsable | Event::HeldResumed))
}

fn answers_take(event: &Event) -> bool {
    matches!(event, Event::Taken { .. } | Event::Scanned { .. } | Event::NotTaken(_) | Event::LogLost)
}
