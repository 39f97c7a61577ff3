//! Executes one turn of the guard of a subject: reports all arrived events to the state machine, and begins due
//! actions.
//!
//! The state machine of the guard decides the actions.
//!
//! Owns: the order in which events are reported, and the descriptors and times for which a guard waits.
//! Invariants: a turn never blocks. The turn that detects a death does not report the death. A following turn reports
//! the death when no thread of this process traces the dead subject. Therefore signals and commits that arrived before
//! the death are reported before the death.
//! Does not: execute actions; `actions` does.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use model::Pid;
use store::LogWriter;
use supervise::{Event, Fault, State, Step};

use super::super::children::Children;
use super::super::output::HeldOutput;
use super::super::rebuild::lock;
use super::super::requests::{Asker, Word};
use super::super::tracer::LetGo;
use super::outbox::SubjectReport;
use super::parts::{After, Guard, Progress, Work};
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::once::hand_on;
use crate::signals::Request;
use crate::subject_state::SubjectState;
use crate::time;

impl Guard {
    /// Reports all arrived events, and executes the due actions.
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
            // The tracer may still take a checkpoint of this subject. The failure is reported after this checkpoint.
            self.receive_reports();
            if !self.taking.tracer.is_tracing() {
                self.driver.progress = Progress::Own;
                self.feed(Event::Failed);
            }
        }
        self.release_messages();
    }

    /// Reports whether the run of this subject is over.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.driver.machine.state(), State::Ended(_))
    }

    pub(crate) fn name(&self) -> &str {
        self.claim.name.as_str()
    }

    /// Returns work for a worker, if there is any. The guard does nothing until the work is done.
    pub(crate) fn take_work(&mut self) -> Option<Work> {
        match std::mem::replace(&mut self.driver.progress, Progress::Away) {
            Progress::Ordered(work) => Some(work),
            other => {
                self.driver.progress = other;
                None
            }
        }
    }

    /// Handles the end of the work of a worker.
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

    /// Returns the reports that the director does not know yet.
    pub(crate) fn take_reports(&mut self) -> Vec<SubjectReport> {
        self.voice.outbox.take_reports()
    }

    /// Returns the messages that people may receive now.
    pub(crate) fn take_messages(&mut self) -> Vec<RunEvent> {
        self.voice.outbox.take_messages()
    }

    /// Lets the restored program redraw its window. Called after the messages were written, which are on the screen.
    pub(crate) fn draw_again(&mut self) {
        if !self.voice.outbox.holds && std::mem::take(&mut self.voice.redraws) {
            lock(&self.rebuild.foreground).draw_again();
        }
    }

    /// Queues a signal that the host has received.
    pub(crate) fn signal(&mut self, request: Request) {
        self.driver.signals.push_back(request);
    }

    /// Records that a check has found the subject ready.
    pub(crate) fn ready(&mut self) {
        self.driver.restart.is_ready = true;
        self.feed(Event::Ready);
    }

    /// Records that a check has found a fault. The subject is killed, and its policy decides what follows.
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.feed(Event::Faulted(fault));
        if let Err(error) = self.act() {
            self.fail(error);
        }
    }

    /// Records an event in the journal of the subject.
    pub(crate) fn note(&self, event: &RunEvent) {
        self.voice.journal.record_event(event.clone());
    }

    /// Returns the pid of the root of the current incarnation.
    pub(crate) fn root(&self) -> Pid {
        self.rebuild.subject.pid()
    }

    /// Reports whether a signal that stops the host must also be sent to the subject. A signal that arrives while the
    /// subject does not run stops only the host.
    pub(crate) fn is_to_stop(&self, from_terminal: bool) -> bool {
        let has_it = from_terminal && crate::signals::shares_group(self.rebuild.subject.pid());
        self.driver.machine.state().is_alive() && !has_it
    }

    pub(crate) fn send(&self, signal: model::Signal) {
        // A subject that has ended meanwhile needs no signal. The event loop detects the end of the subject.
        let _ = self.rebuild.subject.signal(signal);
    }

    /// Records that the host and the subject were stopped together, and have been continued.
    pub(crate) fn continued(&mut self) {
        self.feed(Event::Continued);
    }

    /// Returns descriptors. A turn is due when one of these descriptors is readable.
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
            handles.extend(self.root_handles());
            handles.extend([self.requests.handle(), self.connections.handle()]);
            handles.extend(tree.children.as_ref().map(Children::handle));
        }
        handles.extend(tracer.log().map(LogWriter::event));
        handles
    }

    /// Returns the pidfds of the roots, except of those that leave and have ended already.
    fn root_handles(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let waits = |root: &Pid| {
            !self.tree.members.is_leaving(*root)
                || self.rebuild.subject.root(*root).is_some_and(|root| !root.has_ended())
        };
        self.rebuild.subject.handles().filter(move |(root, _)| waits(root)).map(|(_, handle)| handle)
    }

    /// Returns the time when a turn is due, even without other events.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        if !matches!(self.driver.progress, Progress::Own) {
            return None;
        }
        let is_pressing = self.tree.death.is_some() && !self.taking.tracer.is_tracing()
            || !self.driver.signals.is_empty() && !self.is_settling()
            || self.tree.members.is_pending()
                && self.driver.machine.state().is_alive()
                && !self.taking.tracer.is_tracing();
        let recheck = self.taking.recheck.as_ref().map(|(_, until)| *until);
        let check = self.requests.next_check().map(|wait| now + wait);
        let is_alive = self.driver.machine.state().is_alive();
        let is_running = is_alive && !self.is_stopped();
        let idle = self.connections.due().filter(|_| is_running);
        let held = self.output.as_ref().filter(|_| is_running).map(HeldOutput::due);
        let outlook = self.outlook_due().filter(|_| is_running);
        let settles =
            self.tree.members.due().filter(|_| self.tree.death.is_none() && !self.taking.tracer.is_tracing());
        let times = [
            settles,
            is_pressing.then_some(now),
            self.driver.machine.wake(now),
            recheck,
            check,
            idle,
            held,
            outlook,
        ];
        times.into_iter().flatten().min()
    }

    /// Reports whether a restore waits for checkpoints in flight. A signal that arrives during this wait is for the
    /// next incarnation.
    fn is_settling(&self) -> bool {
        matches!(self.driver.machine.state(), State::Restoring { step: Step::Settling(_), .. })
    }

    fn turn(&mut self) -> Result<()> {
        if !self.is_settling() {
            self.take_signals()?;
        }
        if !self.driver.machine.state().is_alive() {
            self.receive_completions();
            self.feed(Event::Due);
            return self.act();
        }
        self.take_requests();
        self.receive_reports();
        self.settle_recheck();
        self.receive_child_failures()?;
        self.act()?;
        let is_tracing = self.taking.tracer.is_tracing();
        if let Some(death) = self.tree.death {
            // A subject that is stopped for a requested restart was killed by another program.
            self.taking.tracer.let_go(LetGo::Resume);
            return if is_tracing { Ok(()) } else { self.died(death) };
        }
        if let Some(death) = self.find_death()? {
            self.tree.death = Some(death);
            self.hold_messages();
            self.taking.tracer.call_off_waits(true);
            self.taking.tracer.let_go(LetGo::Resume);
            return Ok(());
        }
        if !is_tracing && lock(&self.rebuild.foreground).follow_stop(&self.rebuild.subject)? {
            self.feed(Event::Continued);
        }
        if !self.is_stopped() {
            // The check for the death of the subject must precede this call, so that events after the death stay
            // pending.
            self.connections.turn(self.rebuild.host.clock.now());
            self.release_late_output();
            self.look_out();
        }
        self.feed(Event::Due);
        self.act()?;
        self.check_journal();
        if matches!(self.driver.progress, Progress::Own) && !self.is_stopped() {
            self.join_next();
        }
        Ok(())
    }

    /// Releases output that was held for too long. Peers do not wait forever.
    fn release_late_output(&mut self) {
        let now = self.rebuild.host.clock.now();
        let Some(release) = self.output.as_mut().and_then(|output| output.turn(now)) else { return };
        if release.has_sent {
            self.feed(Event::OutputSent);
        }
        if release.is_first {
            self.voice.record.facts.connections.held = 0;
            self.voice.record.facts.connections.late_releases += 1;
            let (after_us, reason) = (time::microseconds(supervise::OUTPUT_TIMEOUT), self.why_behind());
            self.report(RunEvent::OutputReleased { after_us, reason });
        }
        self.renew_outlook();
    }

    /// Records that an action could not be executed.
    fn fail(&mut self, error: GuardianError) {
        self.driver.last_error = Some(error);
        self.driver.progress = Progress::Failing;
        self.taking.tracer.let_go(LetGo::Resume);
        self.taking.tracer.call_off_waits(true);
    }

    /// Reports an event to the state machine, and queues the actions that the state machine decides. `act` executes the
    /// actions.
    pub(super) fn feed(&mut self, event: Event) {
        if matches!(event, Event::Ready | Event::Continued) {
            // Before, no checkpoint was due.
            self.refusals.on_time = self.rebuild.host.clock.now();
        }
        self.driver.actions.extend(self.driver.machine.step(self.rebuild.host.clock.now(), event));
        let state = self.driver.machine.state();
        self.voice.record.facts.in_flight = self.driver.machine.in_flight().len();
        let shown = SubjectState::from(state);
        if self.voice.record.state != shown {
            self.voice.record.state = shown;
            self.voice.record.facts.restarts = self.driver.machine.restart_count();
            // A change to any other state is written together with the next change of the record.
            if !state.is_alive() && !matches!(state, State::Ended(_)) {
                self.write_record();
            }
        }
    }

    fn take_signals(&mut self) -> Result<()> {
        while let Some(request) = self.driver.signals.pop_front() {
            if let Request::End { signal, .. } = request {
                self.feed(Event::EndRequested(signal));
                self.renew_outlook();
                self.voice.journal.set(&self.voice.record);
            }
            hand_on(request, &self.rebuild.subject)?;
        }
        Ok(())
    }

    /// Receives the pending reports of the tracer and of the log.
    fn receive_reports(&mut self) {
        while let Some(news) = self.taking.tracer.receive() {
            self.note_news(news);
        }
        self.receive_completions();
        if !self.taking.tracer.is_tracing() {
            self.requests.answer_holds();
        }
    }

    /// Handles the pending requests of the subject.
    fn take_requests(&mut self) {
        let now = self.rebuild.host.clock.now();
        while let Some((word, asker)) = self.requests.poll(&self.rebuild.subject.roots()) {
            match word {
                Word::Restart => self.want_restart(asker),
                Word::HoldProgram(time) => self.want_hold(asker, time),
                Word::ReleaseProgram => self.want_release(&asker),
                Word::Checkpoint | Word::Prune(_) if self.request.every.is_none() => {
                    self.requests.answer(&asker, "error no checkpoints are taken of this program\n");
                }
                Word::Checkpoint => self.want_checkpoint(asker),
                Word::Prune(_) if !asker.is_owner => {
                    self.requests
                        .answer(&asker, "error only root and the user of the guardian remove checkpoints\n");
                }
                Word::Prune(keep) => {
                    let log = self.taking.tracer.log();
                    log.into_iter().for_each(|log| log.keep_newest_once(keep));
                    self.want_checkpoint(asker);
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
        self.feed(Event::Holds(self.requests.is_held() || self.tree.members.is_incomplete));
    }

    fn want_checkpoint(&mut self, asker: Asker) {
        self.requests.want(asker);
        if self.requests.wants_checkpoint() {
            self.feed(Event::Wanted);
        }
    }

    pub(super) fn receive_completions(&mut self) {
        let completions = self.taking.tracer.log().map(LogWriter::take_completions).unwrap_or_default();
        for completion in completions {
            self.note_completion(completion);
        }
    }

    /// Returns the present time in the form of the status.
    pub(super) fn time(&self) -> String {
        crate::time::rfc3339(self.rebuild.host.clock.wall())
    }

    pub(super) fn write_record(&self) {
        self.voice.journal.set_now(&self.voice.record);
    }

    /// Reports once that the status cannot be written. No report is made while a checkpoint is being written: the disk
    /// may be full only until the write of the checkpoint fails. This failure has a report of its own.
    fn check_journal(&mut self) {
        if let Some(error) = self.voice.journal.take_error()
            && self.driver.machine.in_flight().len() == 0
            && !std::mem::replace(&mut self.voice.reported.status, true)
        {
            self.voice.outbox.push(RunEvent::StatusUnwritable { reason: error.to_string() });
        }
    }

    /// Reports an event to the journal and to people. If files are being rolled back, people receive the
    /// event after the rollback.
    pub(super) fn report(&mut self, event: RunEvent) {
        self.voice.journal.record_event(event.clone());
        self.voice.outbox.push(event);
    }
}
