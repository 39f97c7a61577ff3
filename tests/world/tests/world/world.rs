//! One simulated machine: a program, its guardian, two disks and a peer.
//!
//! Owns: the simulated time, the faults, and the execution of the actions of the state machine. The order of the steps is
//! that of `guardian::run::guard`.
//! Invariants: the seed determines a schedule. No thread, no clock and no real file is used: the log works in the calling
//! thread, and the thread that joins epochs is replaced by a call.
//! Does not: judge; `judge` does. Does not adopt a living program.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use guardian::{GuardianError, blame_of};
use model::{Sequence, Signal};
use store::{LogWriter, Medium, Store, SubjectName};
use supervise::{Action, DurableParts, Event, NotTaken, Plan, RestoreError, State, SubjectStatus, Survey};
use undo::simulated::{Disk as FilesDisk, Picture, picture};

use undying_store as store;

use crate::guard::Guard;
use crate::log_model::{Attempt, Subject as Memory};
use crate::simulated::{Disk as StoreDisk, Fault, Lie};
use crate::wire::{Released, Sent, Wire};
use crate::{BEGINNING, Canary, Tally};

const STORE: &str = "/store";
const KILL: Signal = Signal(9);
const SEGMENTATION_FAULT: Signal = Signal(11);
/// The longest delay of a slow disk. Output is released without a checkpoint in the meantime.
const SLOW: Duration = Duration::from_secs(8);
/// How many events a report of a violation contains.
const SHOWN: usize = 200;

/// The end of a guardian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Down {
    Kill,
    PowerCut,
}

/// A future event.
#[derive(Clone, Debug)]
pub(crate) enum Coming {
    /// The program changes a file or sends output.
    Act,
    /// The log writes what is queued.
    Write,
    /// The tracer reports a checkpoint that was taken at this time, with the last packet before it.
    Taken(Sequence, Option<u64>, Instant),
    Report(Event),
    Death(SubjectStatus),
    /// The guardian or the machine ends at a random operation on a disk.
    Down(Down),
    /// The guardian or the machine ends now.
    DownNow,
    /// A disk is full for a while.
    Full(bool),
    /// Disks are slow for a while.
    Slow(bool),
    EndRequest,
}

/// The state of everything at a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) sent: Sent,
    pub(crate) files: Picture,
}

/// The faults that are in force.
#[derive(Default, Debug)]
pub(crate) struct Trouble {
    pub(crate) armed: Option<Down>,
    pub(crate) is_down: bool,
    pub(crate) is_slow: bool,
    /// Whether the fd holder has died. The next restart replaces it.
    pub(crate) is_holder_dead: bool,
    /// Whether a step of a restart has failed in this run.
    pub(crate) has_failed_step: bool,
    /// Whether deaths have excluded a checkpoint in this run. The policy then also skips checkpoints that are not excluded.
    pub(crate) has_excluded: bool,
    /// Checkpoints that must not be used: a fault has made them unusable, or deaths have excluded them.
    pub(crate) unusable: BTreeSet<Sequence>,
}

pub(crate) struct World<'a> {
    pub(crate) random: Rng,
    pub(crate) canary: Option<Canary>,
    pub(crate) tally: &'a mut Tally,
    pub(crate) violation: Option<String>,
    began: Instant,
    pub(crate) now: Instant,
    pub(crate) store_disk: Arc<StoreDisk>,
    pub(crate) files_disk: FilesDisk,
    pub(crate) memory: Memory,
    /// The memory of the living program, apart from `memory`.
    pub(crate) program: Option<Sent>,
    pub(crate) moments: BTreeMap<Sequence, Moment>,
    pub(crate) wire: Wire,
    pub(crate) plan: Plan,
    pub(crate) guard: Option<Guard>,
    pub(crate) coming: Vec<(Instant, Coming)>,
    pub(crate) trouble: Trouble,
    /// The newest checkpoint that the log has reported as durable.
    pub(crate) answered: Option<Sequence>,
    pub(crate) shown: VecDeque<String>,
    /// Whether each event is printed.
    is_replay: bool,
}

pub(crate) fn name() -> SubjectName {
    "subject".parse().unwrap()
}

impl<'a> World<'a> {
    pub(crate) fn new(
        seed: u64,
        canary: Option<Canary>,
        plan: Plan,
        random: Rng,
        tally: &'a mut Tally,
    ) -> Self {
        let store_disk = StoreDisk::new(seed);
        if canary == Some(Canary::SyncsNothing) {
            store_disk.lie(Lie::Files);
        }
        let (mut random, now) = (random, Instant::now());
        Self {
            files_disk: FilesDisk::new(random.u64(..), true),
            memory: Memory::new(random.u64(..), 24, 4),
            random,
            canary,
            tally,
            violation: None,
            is_replay: std::env::var_os(crate::REPLAY).is_some(),
            began: now,
            now,
            store_disk,
            program: None,
            moments: BTreeMap::new(),
            wire: Wire::default(),
            plan,
            guard: None,
            coming: Vec::new(),
            trouble: Trouble::default(),
            answered: None,
            shown: VecDeque::new(),
        }
    }

    pub(crate) fn note(&mut self, what: String) {
        if self.is_replay {
            println!("{:>12.6} {what}", (self.now - self.began).as_secs_f64());
        }
        if self.shown.len() == SHOWN {
            self.shown.pop_front();
        }
        self.shown.push_back(what);
    }

    pub(crate) fn store(&self) -> store::Result<Store> {
        Store::open_on(Arc::clone(&self.store_disk) as Arc<dyn Medium>, Path::new(STORE))
    }

    pub(crate) fn guard(&mut self) -> &mut Guard {
        self.guard.as_mut().expect("a guardian runs")
    }

    pub(crate) fn state(&self) -> Option<State> {
        self.guard.as_ref().map(|guard| guard.machine.state())
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.state().is_some_and(|state| state.is_alive())
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state(), Some(State::Stopped { .. }))
    }

    /// Reports whether the guardian or the machine has ended, so that no more steps are taken.
    pub(crate) fn is_down(&self) -> bool {
        let is_dead = self.store_disk.hit() || self.files_disk.is_dead();
        self.trouble.is_down || self.trouble.armed.is_some() && is_dead
    }

    pub(crate) fn come(&mut self, most: Duration, thing: Coming) {
        let at = self.now + most.mul_f64(self.random.f64());
        self.coming.push((at, thing));
    }

    fn every(&self) -> Duration {
        self.plan.every.unwrap_or_default()
    }

    /// Passes an event to the state machine, and carries out the actions.
    pub(crate) fn report(&mut self, event: Event) {
        self.feed(event);
        self.act();
    }

    fn act(&mut self) {
        loop {
            while !self.is_down()
                && self.violation.is_none()
                && let Some(action) = self.guard().actions.pop_front()
            {
                self.note(format!("        {action:?}"));
                if let Some(answer) = self.carry_out(action) {
                    self.feed(answer);
                }
            }
            let guard = self.guard();
            let incarnation = guard.machine.incarnation();
            if incarnation == guard.incarnation {
                return;
            }
            guard.incarnation = incarnation;
            self.begin_incarnation();
        }
    }

    /// One turn of the guardian.
    pub(crate) fn turn(&mut self) {
        self.receive_completions();
        if self.is_alive() && !self.is_stopped() {
            self.release_late();
        }
        self.report(Event::Due);
    }

    fn release_late(&mut self) {
        let now = self.now;
        let Some(output) = &mut self.guard().output else { return };
        if !output.is_late(now) {
            return;
        }
        let last = self.wire.queued();
        self.note(format!("output is late, through {last:?}"));
        self.wire.release(last.unwrap_or(0), Released::Late);
        let output = self.guard().output.as_mut().expect("it was checked above");
        if output.released_late(last).has_sent {
            self.tally.late += 1;
            self.report(Event::OutputSent);
        }
    }

    pub(crate) fn happen(&mut self, thing: Coming) {
        self.note(format!("{thing:?}"));
        match thing {
            Coming::Act => self.program_acts(),
            Coming::Write => self.write(),
            Coming::Taken(sequence, through, at) => self.note_taken(sequence, through, at),
            Coming::Report(event) => self.report(event),
            Coming::Death(status) => self.die(status),
            Coming::Down(down) => self.arm(down),
            Coming::DownNow => self.trouble.is_down |= self.trouble.armed.is_some(),
            Coming::Full(is_full) => self.fill(is_full),
            Coming::Slow(is_slow) => self.trouble.is_slow = is_slow,
            Coming::EndRequest => {
                self.report(Event::EndRequested(Signal(15)));
                if self.is_alive() {
                    self.come(self.every(), Coming::Death(SubjectStatus::Killed(Signal(15))));
                }
            }
        }
    }

    fn arm(&mut self, down: Down) {
        if self.trouble.armed.is_some() {
            return;
        }
        self.trouble.armed = Some(down);
        let operations = self.random.u64(..30);
        if self.random.bool() {
            self.store_disk.plan(operations, fault_of(down));
        } else {
            self.store_disk.heal();
            self.files_disk.end_after(Some(operations));
        }
        self.come(self.every() * 4, Coming::DownNow);
    }

    fn fill(&mut self, is_full: bool) {
        if self.trouble.armed.is_some() {
            return;
        }
        if !is_full {
            self.store_disk.heal();
            self.files_disk.set_full(false);
            return;
        }
        if self.random.bool() {
            self.store_disk.plan(self.random.u64(..20), Fault::Full);
        } else {
            self.files_disk.set_full(true);
        }
        self.come(self.every() * 10, Coming::Full(false));
    }

    fn program_acts(&mut self) {
        if self.is_alive() && !self.is_stopped() && self.program.is_some() {
            self.program_acts_once();
            let most = self.every();
            self.come(most, Coming::Act);
        }
    }

    fn program_acts_once(&mut self) {
        if self.random.u8(..3) > 0 {
            let is_recorded = self.canary != Some(Canary::MissesChanges) || self.random.u8(..10) > 0;
            self.guard().watch.change(is_recorded);
        } else if let (Some(sent), Some(guard)) = (&mut self.program, &self.guard) {
            self.wire.send(sent, guard.output.is_some());
        }
    }

    /// Lets the log write all that is queued.
    pub(crate) fn write(&mut self) {
        for ticket in std::mem::take(&mut self.guard().tickets) {
            let _ = ticket.wait_for(Duration::ZERO);
        }
        if !self.is_down() {
            self.receive_completions();
            self.act();
        }
    }

    pub(crate) fn receive_completions(&mut self) {
        let log = self.guard().log.as_ref();
        for completion in log.map(LogWriter::take_completions).unwrap_or_default() {
            self.note_completion(completion);
        }
    }

    fn note_completion(&mut self, (sequence, outcome): store::Completion) {
        if outcome.is_ok() {
            self.answered = self.answered.max(Some(sequence));
        }
        let guard = self.guard();
        if sequence >= guard.machine.next_sequence() {
            guard.early = Some((sequence, outcome));
            return;
        }
        let place = guard.pending.iter().position(|pending| *pending == sequence);
        let found = place.and_then(|place| guard.pending.remove(place));
        match (outcome, found) {
            (Ok(_), Some(_)) => {
                self.tally.committed += 1;
                self.note(format!("{sequence} is durable"));
                supervise::committed(self, sequence);
            }
            (Ok(_), None) | (Err(store::Error::CalledOff), _) => self.feed(Event::CalledOff(sequence)),
            (Err(_), _) => {
                if let Some(output) = &mut self.guard().output {
                    let _ = output.unusable(sequence);
                }
                self.feed(Event::WriteFailed(sequence));
            }
        }
    }

    fn note_taken(&mut self, sequence: Sequence, through: Option<u64>, at: Instant) {
        let pause = Duration::from_micros(self.random.u64(..2_000));
        self.feed(Event::Taken {
            ago: self.now - at,
            pause,
            arming: Duration::ZERO,
            sliced: None,
            is_store_slow: self.trouble.is_slow,
            besides: Duration::ZERO,
        });
        let guard = self.guard();
        guard.pending.push_back(sequence);
        if let Some(output) = &mut guard.output {
            let _ = output.taken(sequence, through, ());
        }
        if self.canary == Some(Canary::ReleasesAtOnce) {
            self.release(sequence, true);
        }
        supervise::hold_newest(self);
        if let Some(completion) = self.guard().early.take() {
            self.note_completion(completion);
        }
        self.act();
    }

    fn die(&mut self, status: SubjectStatus) {
        if !self.is_alive() || self.program.is_none() {
            return;
        }
        // The tracer reports the checkpoint before the death.
        let is_of_tracer = |(_, thing): &(Instant, Coming)| {
            matches!(thing, Coming::Taken(..) | Coming::Report(Event::HeldResumed | Event::Checked(_)))
        };
        while let Some(index) = self.coming.iter().position(is_of_tracer) {
            let (_, thing) = self.coming.swap_remove(index);
            self.happen(thing);
        }
        if !self.is_alive() {
            return;
        }
        self.tally.deaths += 1;
        self.program = None;
        self.coming.retain(|(_, thing)| !matches!(thing, Coming::Act | Coming::Death(_)));
        self.receive_completions();
        self.report(Event::Died { status, has_terminal: false, after_child: Vec::new() });
    }

    fn begin_incarnation(&mut self) {
        let every = self.every();
        self.come(every, Coming::Act);
        let lives = every * self.random.u32(1..12);
        let status = if self.random.u8(..4) == 0 { SEGMENTATION_FAULT } else { KILL };
        self.come(lives, Coming::Death(SubjectStatus::Killed(status)));
        for (chance, thing) in [
            (2, Coming::Full(true)),
            (2, Coming::Slow(true)),
            (1, Coming::Down(Down::Kill)),
            (1, Coming::Down(Down::PowerCut)),
            (1, Coming::Report(Event::RestartRequested)),
            (2, Coming::Report(Event::Wanted)),
        ] {
            if self.random.u8(..10) < chance {
                if matches!(thing, Coming::Slow(_)) {
                    self.come(lives * 4, Coming::Slow(false));
                }
                self.come(lives, thing);
            }
        }
        self.trouble.is_holder_dead |= self.random.u8(..8) == 0;
    }
}

impl World<'_> {
    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Take(sequence) => return self.take(sequence, false),
            Action::TakeAndHold(sequence) => return self.take(sequence, true),
            Action::Check(_) => {
                let survey = self.survey().ok()?;
                self.come(Duration::from_millis(5), Coming::Report(Event::Checked(survey)));
            }
            Action::KillHeld | Action::KillRoot => {
                self.come(Duration::from_millis(5), Coming::Death(SubjectStatus::Killed(KILL)));
            }
            Action::ResumeHeld => self.come(Duration::from_millis(5), Coming::Report(Event::HeldResumed)),
            Action::Signal(signal) => {
                self.come(Duration::from_millis(5), Coming::Death(SubjectStatus::Killed(signal)));
            }
            Action::OpenLog => return self.open_log_again(),
            Action::Clear => {
                let outcome = self.guard().watch.subject_ended().map(|()| Event::Cleared);
                return Some(self.answer(outcome.map_err(GuardianError::from)));
            }
            Action::Survey => {
                let outcome = self.survey().map(Event::Surveyed);
                return Some(self.answer(outcome.map_err(GuardianError::from)));
            }
            Action::LeaveBehind { newest, .. } => {
                let guard = self.guard();
                guard.pending.clear();
                if let Some(log) = &guard.log {
                    let _ = log.void_above(newest);
                }
            }
            Action::Restore(sequence) => return Some(self.restore(sequence)),
            Action::Start { is_with_files, why } => return Some(self.start(is_with_files, why)),
            Action::Report(notice) => {
                if let supervise::Notice::Poisoned(sequence) = notice {
                    self.trouble.has_excluded = true;
                    // Checkpoints that descend from it are excluded, too.
                    self.trouble.unusable.extend(self.moments.range(sequence..).map(|(later, _)| *later));
                }
            }
            Action::Late(..) => {}
        }
        None
    }

    /// Returns the event that answers a step of a restart.
    fn answer(&mut self, outcome: Result<Event, GuardianError>) -> Event {
        outcome.unwrap_or_else(|error| Event::StepFailed(self.blame(&error)))
    }

    fn blame(&mut self, error: &GuardianError) -> RestoreError {
        self.note(format!("        failed: {error}"));
        self.trouble.has_failed_step = true;
        blame_of(error)
    }

    fn take(&mut self, sequence: Sequence, is_held: bool) -> Option<Event> {
        if self.guard().log.as_ref().is_none_or(|log| log.check().is_err()) {
            self.receive_completions();
            self.guard().pending.clear();
            return Some(Event::LogLost);
        }
        let (is_deferred, is_aborted) = (self.random.u8(..12) == 0, self.random.u8(..20) == 0);
        let (acts, is_after_commit) = (self.random.u8(..if is_held { 1 } else { 3 }), self.random.bool());
        let Self { memory, guard, program, wire, files_disk, moments, random, .. } = self;
        let (Some(guard), Some(sent)) = (guard.as_mut(), program.as_mut()) else {
            return Some(Event::NotTaken(NotTaken::Dying));
        };
        let Guard { log, watch, output, needs_all, .. } = guard;
        let Some(log) = log.as_ref() else { return Some(Event::LogLost) };
        memory.next = sequence;
        let mut through = None;
        let pause = || {
            watch.boundary(sequence, is_deferred);
            moments.insert(sequence, Moment { sent: sent.clone(), files: picture(files_disk) });
            through = wire.queued();
            // The program runs again. The records of the boundary are not written yet.
            for _ in 0..acts {
                if random.bool() {
                    watch.change(true);
                } else {
                    wire.send(sent, output.is_some());
                }
            }
            if !is_after_commit {
                watch.after_pause();
            }
            !is_aborted
        };
        let attempt = memory.checkpoint(log, *needs_all, pause);
        if is_after_commit && !matches!(attempt, Ok(Attempt::Behind)) {
            watch.after_pause();
        }
        *needs_all = !matches!(attempt, Ok(Attempt::Taken(_) | Attempt::Behind)) || *needs_all;
        match attempt {
            Ok(Attempt::Taken(ticket)) => {
                *needs_all = false;
                guard.tickets.push(ticket);
                self.tally.taken += 1;
                let most = if self.trouble.is_slow { SLOW } else { self.every() / 2 };
                self.come(most, Coming::Write);
                self.come(self.every() / 4, Coming::Taken(sequence, through, self.now));
                None
            }
            Ok(Attempt::Behind) => Some(Event::NotTaken(NotTaken::Behind)),
            Ok(Attempt::Aborted) | Err(_) => Some(Event::NotTaken(NotTaken::Refused)),
        }
    }

    fn open_log_again(&mut self) -> Option<Event> {
        self.tally.logs_lost += 1;
        let guard = self.guard();
        guard.tickets.clear();
        guard.needs_all = true;
        guard.log = None;
        match self.open_log() {
            Ok(log) => {
                self.guard().log = Some(log);
                self.feed(Event::LogOpened);
                supervise::hold_newest(self);
                None
            }
            Err(error) => {
                self.note(format!("        failed: {error}"));
                Some(Event::LogNotOpened { is_dying: false })
            }
        }
    }

    pub(crate) fn open_log(&mut self) -> store::Result<LogWriter> {
        let options = crate::schedule::log_options(&mut self.random);
        self.store()?.open_log(&name(), options)
    }

    fn survey(&mut self) -> store::Result<Survey> {
        let found = self.store()?.list(&name())?;
        let committed: Vec<Sequence> = found.into_iter().map(|(sequence, _)| sequence).collect();
        let guard = self.guard();
        let known: Vec<Sequence> = committed.iter().copied().chain(guard.machine.in_flight()).collect();
        let exact = guard.watch.exact(&known);
        let reaches_beginning = !guard.watch.exact(&[BEGINNING]).is_empty();
        let unchanged_from = guard.watch.unchanged_from();
        Ok(Survey { committed, exact, reaches_beginning, unchanged_from, ..Survey::default() })
    }

    fn restore(&mut self, sequence: Sequence) -> Event {
        self.judge_choice(sequence);
        // The guardian rolls the connections back before the worker begins.
        let continues = match self.guard().output.as_mut().map(|output| output.go_back(sequence)) {
            Some(Some(released)) => {
                self.wire.release(released.through.unwrap_or(0), Released::Committed);
                self.wire.discard();
                true
            }
            Some(None) | None => {
                self.abandon();
                false
            }
        };
        self.now += self.every().mul_f64(self.random.f64());
        match self.rebuild(sequence) {
            Ok(()) => {
                self.judge_restored(sequence, continues);
                self.runs_again(self.moments[&sequence].sent.clone());
                self.memory.now = self.memory.history[&sequence].clone();
                self.tally.restored += 1;
                Event::Restored
            }
            Err(why) => {
                if why == RestoreError::Unusable || why == RestoreError::Unclear {
                    self.trouble.unusable.insert(sequence);
                }
                Event::NotRestored(why)
            }
        }
    }

    fn abandon(&mut self) {
        self.wire.reset();
        self.guard().output.iter_mut().for_each(|output| output.abandon().for_each(drop));
    }

    /// Executes the steps of a restore in the order of `guardian::run::rebuild`: steps that change no file, the rollback of
    /// the files, and the processes.
    fn rebuild(&mut self, sequence: Sequence) -> Result<(), RestoreError> {
        self.own_process_dies()?;
        self.trouble.is_holder_dead = false;
        let image = self.store().and_then(|store| store.image(&name(), sequence));
        let image = image.map_err(|error| self.blame(&error.into()))?;
        self.judge_image(sequence, &image);
        let to = match self.canary {
            Some(Canary::RollsBackElsewhere) => {
                self.moments.range(..sequence).next_back().map_or(sequence, |one| *one.0)
            }
            _ => sequence,
        };
        let went = self.guard().watch.go_back(to);
        went.map_err(|error| match self.blame(&error.into()) {
            RestoreError::FilesChanged => RestoreError::FilesStay,
            other => other,
        })?;
        if let Err(why) = self.own_process_dies() {
            let ended = self.guard().watch.subject_ended();
            ended.map_err(|error| self.blame(&error.into()))?;
            return Err(why);
        }
        Ok(())
    }

    /// Sometimes lets a process of `undying` die, or a record be refused, in a step of a restart.
    fn own_process_dies(&mut self) -> Result<(), RestoreError> {
        let why = match self.random.u8(..40) {
            0 | 1 => RestoreError::NotNow,
            2 => RestoreError::Unclear,
            3 => RestoreError::Unusable,
            _ => return Ok(()),
        };
        self.trouble.has_failed_step = true;
        Err(why)
    }

    fn start(&mut self, is_with_files: bool, why: Option<supervise::FreshReason>) -> Event {
        self.judge_start(why);
        self.abandon();
        self.now += self.every().mul_f64(self.random.f64());
        let watch = &mut self.guard().watch;
        let outcome = if is_with_files { watch.go_back(BEGINNING) } else { watch.start_over() };
        if let Err(error) = outcome {
            return Event::NotStarted(self.blame(&error.into()));
        }
        if is_with_files {
            self.judge_files(BEGINNING);
        }
        self.tally.begun_anew += 1;
        self.begin_program();
        Event::Started
    }

    /// Starts the program from its beginning, with its present files.
    pub(crate) fn begin_program(&mut self) {
        let files = picture(&self.files_disk);
        self.moments.insert(BEGINNING, Moment { sent: Sent::default(), files });
        self.wire.begin();
        self.runs_again(Sent::default());
    }

    fn runs_again(&mut self, sent: Sent) {
        let now = self.now;
        let guard = self.guard();
        guard.needs_all = true;
        // The record precedes the first instruction. Without a guardian, the stopped processes end.
        guard.watch.runs();
        self.program = Some(sent).filter(|_| !self.is_down());
        let guard = self.guard();
        if let Some(output) = &mut guard.output {
            let _ = output.is_back(now);
        }
    }
}

impl DurableParts for World<'_> {
    fn exact(&self, sequences: &[Sequence]) -> Vec<Sequence> {
        self.guard.as_ref().map(|guard| guard.watch.exact(sequences)).unwrap_or_default()
    }

    fn kept(&self) -> Option<Vec<Sequence>> {
        self.guard.as_ref()?.log.as_ref().map(|log| log.status().kept)
    }

    fn in_flight(&self) -> Vec<Sequence> {
        self.guard.as_ref().map(|guard| guard.machine.in_flight().collect()).unwrap_or_default()
    }

    fn release(&mut self, sequence: Sequence, is_used: bool) {
        let now = self.now;
        let Some(output) = &mut self.guard().output else { return };
        if !is_used {
            let _ = output.unusable(sequence);
        } else if let Some(released) = output.committed(sequence, now) {
            self.tally.released += 1;
            self.wire.release(released.through.unwrap_or(0), Released::Committed);
        }
    }

    fn feed(&mut self, event: Event) {
        let now = self.now;
        let guard = self.guard();
        let actions = guard.machine.step(now, event);
        guard.actions.extend(actions);
    }

    fn retain(&mut self, exact: &[Sequence]) {
        self.guard().watch.retain(exact);
    }

    fn hold(&mut self, sequences: &[Sequence]) {
        let held = if self.canary == Some(Canary::HoldsNothing) { &[] } else { sequences };
        self.guard().log.iter().for_each(|log| log.hold(held));
    }
}

pub(crate) fn fault_of(down: Down) -> Fault {
    match down {
        Down::Kill => Fault::Kill,
        Down::PowerCut => Fault::PowerCut,
    }
}
