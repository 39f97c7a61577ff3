//! One turn of a guard: reports all events that have arrived to the state machine, and begins what is due.
//!
//! Owns: the order in which events are reported; what a guard waits for.
//! Invariants: a turn never blocks. A death is reported in the turn after it was noticed, and only when no thread of
//! this process traces the dead subject. So signals and commits that had arrived are reported before it.
//! Does not: carry out actions.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use model::Pid;
use store::LogWriter;
use supervise::{Event, Fault, State, Step};

use super::super::children::Children;
use super::super::output::{self, HeldOutput};
use super::super::rebuild::lock;
use super::super::requests::Word;
use super::parts::{After, Guard, Progress, Work};
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::once::hand_on;
use crate::record::SubjectState;
use crate::signals::Request;
use crate::time;

impl Guard {
    /// Reports all events that have arrived, and carries out what is due.
    pub(crate) fn step(&mut self) {
        match self.driver.progress {
            Progress::Own => {
                if let Err(error) = self.turn() {
                    self.fail(error);
                }
            }
            Progress::Ordered(_) | Progress::Away => return,
            Progress::Failing => {}
        }
        if matches!(self.driver.progress, Progress::Failing) {
            // A checkpoint that is being taken is still one of this subject's.
            self.hear();
            if !self.taking.tracer.is_tracing() {
                self.driver.progress = Progress::Own;
                self.feed(Event::Failed);
            }
        }
        self.release_messages();
    }

    /// Whether the run of this subject is over.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.driver.machine.state(), State::Ended(_))
    }

    /// The subject.
    pub(crate) fn name(&self) -> &str {
        self.claim.name.as_str()
    }

    /// Work for a worker, if there is some. The guard does nothing until it is done.
    pub(crate) fn take_work(&mut self) -> Option<Work> {
        match std::mem::replace(&mut self.driver.progress, Progress::Away) {
            Progress::Ordered(work) => Some(work),
            other => {
                self.driver.progress = other;
                None
            }
        }
    }

    /// The work is done.
    pub(crate) fn work_done(&mut self, after: After) {
        self.driver.progress = Progress::Own;
        let outcome = after(self).and_then(|event| {
            self.feed(event);
            self.act()
        });
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Reports for the operator now.
    pub(crate) fn take_told(&mut self) -> Vec<RunEvent> {
        if self.voice.is_holding { Vec::new() } else { std::mem::take(&mut self.voice.outbox) }
    }

    /// The host has received a signal.
    pub(crate) fn signal(&mut self, request: Request) {
        self.driver.signals.push_back(request);
    }

    /// A check from outside finds that the subject is ready.
    pub(crate) fn ready(&mut self) {
        self.feed(Event::Ready);
    }

    /// A check from outside has found a fault: the subject is killed, and its policy decides what follows.
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.feed(Event::Faulted(fault));
        if let Err(error) = self.act() {
            self.fail(error);
        }
    }

    /// Updates the status with the facts of the caller.
    pub(crate) fn note(&self, event: &RunEvent) {
        self.voice.journal.tell(event.clone());
    }

    /// The root of the present incarnation.
    pub(crate) fn root(&self) -> Pid {
        self.rebuild.subject.pid()
    }

    /// Whether a signal that stops the host has to be sent to the subject as well. One that comes while there is no
    /// subject stops the host alone.
    pub(crate) fn is_to_stop(&self, from_terminal: bool) -> bool {
        let has_it = from_terminal && crate::signals::shares_group(self.rebuild.subject.pid());
        self.driver.machine.state().is_alive() && !has_it
    }

    /// Sends the subject a signal.
    pub(crate) fn send(&self, signal: model::Signal) {
        // One that has ended meanwhile needs none; the loop will see.
        let _ = self.rebuild.subject.signal(signal);
    }

    /// The host and the subject were stopped together, and continue.
    pub(crate) fn continued(&mut self) {
        self.feed(Event::Continued);
    }

    /// What a turn is due for.
    pub(crate) fn handles(&self) -> Vec<BorrowedFd<'_>> {
        let (tracer, tree) = (&self.taking.tracer, &self.tree);
        let mut handles = Vec::new();
        let is_own = match self.driver.progress {
            Progress::Ordered(_) | Progress::Away => return handles,
            Progress::Own => true,
            Progress::Failing => false,
        };
        let is_alive = self.driver.machine.state().is_alive();
        if is_alive || !is_own {
            handles.push(tracer.handle());
        }
        if is_alive && is_own && tree.death.is_none() {
            handles.extend([
                self.rebuild.subject.handle(),
                self.requests.handle(),
                self.connections.handle(),
            ]);
            handles.extend(tree.children.as_ref().map(Children::handle));
        }
        handles.extend(tracer.log().map(LogWriter::event));
        handles
    }

    /// When a turn is due, whatever else happens.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        if !matches!(self.driver.progress, Progress::Own) {
            return None;
        }
        let is_pressing = self.tree.death.is_some() && !self.taking.tracer.is_tracing()
            || !self.driver.signals.is_empty() && !self.is_settling();
        let recheck = self.taking.recheck.as_ref().map(|(_, until)| *until);
        let look = self.requests.look().map(|look| now + look);
        let is_alive = self.driver.machine.state().is_alive();
        let idle = self.connections.due().filter(|_| is_alive);
        let held = self.output.as_ref().filter(|_| is_alive).map(HeldOutput::due);
        let times = [is_pressing.then_some(now), self.driver.machine.wake(now), recheck, look, idle, held];
        times.into_iter().flatten().min()
    }

    /// A signal that arrives while the subject is being restored waits for its next incarnation.
    fn is_settling(&self) -> bool {
        matches!(self.driver.machine.state(), State::Restoring { step: Step::Settling(_), .. })
    }

    fn turn(&mut self) -> Result<()> {
        if !self.is_settling() {
            self.take_signals()?;
        }
        if !self.driver.machine.state().is_alive() {
            self.hear_log();
            self.feed(Event::Due);
            return self.act();
        }
        self.take_requests();
        self.hear();
        self.settle_recheck();
        self.hear_children()?;
        self.act()?;
        let is_tracing = self.taking.tracer.is_tracing();
        if let Some(status) = self.tree.death {
            return if is_tracing { Ok(()) } else { self.died(status) };
        }
        if let Some(status) = self.rebuild.subject.ended()? {
            self.tree.death = Some(status);
            self.hold_messages();
            self.taking.tracer.call_off_waits(true);
            return Ok(());
        }
        if !is_tracing && lock(&self.rebuild.foreground).follow_stop(&self.rebuild.subject)? {
            self.feed(Event::Continued);
        }
        // After the check whether it lives: events since its death remain pending.
        self.connections.turn(self.rebuild.host.clock.now());
        self.release_late_output();
        self.feed(Event::Due);
        self.act()?;
        self.hear_journal();
        Ok(())
    }

    /// Peers do not wait for ever.
    fn release_late_output(&mut self) {
        let now = self.rebuild.host.clock.now();
        if self.output.as_mut().is_some_and(|output| output.turn(now)) {
            self.voice.record.facts.connections.held = 0;
            self.report(RunEvent::OutputReleased { after_us: time::microseconds(output::TIMEOUT) });
        }
    }

    /// An action could not be carried out.
    fn fail(&mut self, error: GuardianError) {
        self.driver.last_error = Some(error);
        self.driver.progress = Progress::Failing;
        self.taking.tracer.call_off_waits(true);
    }

    /// Reports an event to the state machine. What follows is done by `act`.
    pub(super) fn feed(&mut self, event: Event) {
        self.driver.actions.extend(self.driver.machine.step(self.rebuild.host.clock.now(), event));
        let state = self.driver.machine.state();
        self.voice.record.facts.in_flight = self.driver.machine.in_flight().len();
        let shown = SubjectState::from(state);
        if self.voice.record.state != shown {
            self.voice.record.state = shown;
            self.voice.record.facts.restarts = self.driver.machine.restart_count();
            // The rest is written with what else changes then.
            if !state.is_alive() && !matches!(state, State::Ended(_)) {
                self.write_record();
            }
        }
    }

    fn take_signals(&mut self) -> Result<()> {
        while let Some(request) = self.driver.signals.pop_front() {
            if let Request::End { signal, .. } = request {
                self.feed(Event::EndRequested(signal));
            }
            hand_on(request, &self.rebuild.subject)?;
        }
        Ok(())
    }

    /// Receives the reports of the tracer and the log so far.
    fn hear(&mut self) {
        while let Some(news) = self.taking.tracer.hear() {
            self.note_news(news);
        }
        self.hear_log();
        if !self.taking.tracer.is_tracing() {
            self.requests.tell_quiet();
        }
    }

    /// Carries out requests of the subject.
    fn take_requests(&mut self) {
        let now = self.rebuild.host.clock.now();
        while let Some((word, asker)) = self.requests.poll(self.rebuild.subject.pid()) {
            match word {
                Word::Checkpoint if self.request.every.is_none() => {
                    self.requests.answer(&asker, "error no checkpoints are taken of this program\n");
                }
                Word::Checkpoint => {
                    self.requests.want(asker);
                    if self.requests.wants_checkpoint() {
                        self.feed(Event::Wanted);
                    }
                }
                Word::Hold => self.requests.hold(asker, now),
                Word::Release => self.requests.release(&asker),
                Word::Ready => {
                    self.feed(Event::Ready);
                    self.requests.answer(&asker, "ok\n");
                }
                Word::Unknown => self.requests.answer(&asker, "error unknown request\n"),
            }
        }
        if self.requests.is_held() {
            for pid in self.requests.end_stale_holds(now) {
                self.report(RunEvent::HoldEnded { pid: pid.get() });
            }
        }
        self.feed(Event::Holds(self.requests.is_held()));
    }

    pub(super) fn hear_log(&mut self) {
        let completions = self.taking.tracer.log().map(LogWriter::take_completions).unwrap_or_default();
        for completion in completions {
            self.note_completion(completion);
        }
    }

    /// The present time, in the form of the status.
    pub(super) fn time(&self) -> String {
        crate::time::rfc3339(self.rebuild.host.clock.wall())
    }

    pub(super) fn write_record(&self) {
        self.voice.journal.set_now(&self.voice.record);
    }

    /// Tells once that the status cannot be written. While a checkpoint is being written the disk may be full of it
    /// only until that has failed, which is told as well.
    fn hear_journal(&mut self) {
        if let Some(error) = self.voice.journal.take_error()
            && self.driver.machine.in_flight().len() == 0
            && !std::mem::replace(&mut self.voice.told.status, true)
        {
            self.voice.outbox.push(RunEvent::StatusUnwritable { reason: error.to_string() });
        }
    }

    /// Reports to the operator, now or when deferred messages may be written, and to the journal.
    pub(super) fn report(&mut self, event: RunEvent) {
        self.voice.journal.tell(event.clone());
        self.voice.outbox.push(event);
    }
}
