//! The event loop: hosts the state machine of one subject.
//!
//! Owns: in which order events are reported to the state machine, and the record for `status`.
//! Invariants: this thread waits for no disk while the subject runs; signals and commits that have arrived are reported
//! before a death; no child is reaped that may be traced.
//! Does not: trace a subject that runs, decide, carry out actions, or know the file's shape; their modules do.

mod actions;
mod death;
mod news;
mod parts;
mod rewind;
mod telling;

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, poll};
use store::{EPOCHS_IN_FLIGHT_MAX, LogWriter, Store};
use supervise::{Beginning, End, Event, Failure, Plan, State, Step, SubjectStatus};
use sys::Error;

use self::parts::{Driver, Refusals, Taking, Told, Tree, Voice, WatchedFiles};
use self::telling::first_record;
use super::children::Children;
use super::claim::Claim;
use super::departed::Departed;
use super::leftovers::descendants;
use super::reasons::Reasons;
use super::requests::{Asked, Requests, Word};
use super::tracer::{Place, Tracer};
use super::{ChangedFiles, Guarded, RunRequest};
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::files::{FilesReport, WrittenFiles};
use crate::journal::Journal;
use crate::record::{Record, SubjectState};
use crate::restoring::hand_on;
use crate::signals::Request;
use crate::subject::Subject;
use crate::time;

pub(super) use self::parts::{Host, Parts};

/// A subject being guarded.
pub(super) struct Guard<'a> {
    request: &'a RunRequest,
    store: Store,
    claim: Claim,
    host: Host,
    requests: Requests,
    subject: Subject,
    driver: Driver,
    tree: Tree,
    taking: Taking,
    refusals: Refusals,
    files: WatchedFiles,
    voice: Voice<'a>,
}

impl<'a> Guard<'a> {
    pub(super) fn new(
        request: &'a RunRequest,
        parts: Parts,
        tell: &'a mut dyn FnMut(&RunEvent),
    ) -> Result<Self> {
        let Parts { store, claim, host, requests, mut children, subject, first, log, .. } = parts;
        let Parts { tracking, files: policy, no_rewind, watching, .. } = parts;
        children.as_mut().map_or(Ok(()), |children| children.begin(subject.pid(), Duration::ZERO))?;
        let record = first_record(request, &claim, &subject, first, &tracking)?;
        let record = Record { files: FilesReport::first(policy.name(), no_rewind.as_deref()), ..record };
        let record = Record { requests: requests.name().to_owned(), ..record };
        let journal = Journal::start(&claim.directory, claim.name.as_str())?;
        let place = Place::new(&store, &claim.name, request);
        let newest = store.newest(&claim.name)?.map(|(sequence, _)| sequence);
        let beginning = Beginning { next: store.next_sequence(&claim.name)?, first, newest };
        let mut guard = Self {
            tree: Tree {
                owner: host.household.admit(subject.key()),
                children,
                child_death: None,
                known: descendants(subject.pid()),
                departed: Departed::default(),
                resumed_after: Duration::ZERO,
            },
            request,
            store,
            claim,
            host,
            requests,
            driver: Driver::begin(plan(request, policy), beginning),
            subject,
            taking: Taking {
                tracer: Tracer::start(place, log, tracking)?,
                pending: VecDeque::with_capacity(EPOCHS_IN_FLIGHT_MAX),
                early: None,
            },
            refusals: Refusals::default(),
            files: WatchedFiles {
                policy,
                watching,
                written: WrittenFiles::default(),
                deferred: Reasons::default(),
                breaks: Reasons::default(),
            },
            voice: Voice { tell, journal, record, told: Told::default(), waiting: None },
        };
        guard.tell_begin(no_rewind.as_deref());
        Ok(guard)
    }

    /// Tells that there is a subject, and why its files do not go back where nothing else was asked for.
    fn tell_begin(&mut self, no_rewind: Option<&str>) {
        match self.request.what {
            Guarded::Process(pid) => {
                let subject = self.claim.name.to_string();
                self.report(RunEvent::Adopted { pid: pid.get(), subject });
            }
            Guarded::Command(_) => {
                let pid = self.subject.pid().get();
                self.voice.journal.tell(SystemTime::now(), RunEvent::Started { pid, why: None });
            }
        }
        if let Some(why) = no_rewind {
            self.report(RunEvent::FilesCompared { reason: why.to_owned() });
        }
        self.write_record();
    }

    /// Guards until the subject has ended for good.
    pub(super) fn watch(&mut self) -> Result<SubjectStatus> {
        loop {
            if let Err(error) = self.turn() {
                // A checkpoint that is being taken is still one of this subject's.
                self.leave_subject();
                self.driver.last_error = Some(error);
                self.feed(Event::Failed);
            }
            let state = self.driver.machine.state();
            if state.is_alive() || matches!(state, State::Ended(_)) {
                self.release_messages();
            }
            if let State::Ended(end) = state {
                return self.outcome(end);
            }
        }
    }

    /// Waits, reports everything that has arrived, and does what is due.
    fn turn(&mut self) -> Result<()> {
        if self.wait()? {
            self.take_signals()?;
        }
        if !self.driver.machine.state().is_alive() {
            self.hear_log();
            self.feed(Event::Due);
            return self.act();
        }
        self.take_requests();
        self.hear();
        self.hear_children()?;
        self.act()?;
        if let Some(status) = self.subject.ended()? {
            return self.died(status);
        }
        if !self.taking.tracer.is_tracing() && self.host.foreground.follow_stop(&self.subject)? {
            self.feed(Event::Continued);
        }
        self.feed(Event::Due);
        self.act()?;
        self.hear_journal();
        Ok(())
    }

    /// What the caller of the run is told.
    fn outcome(&mut self, end: End) -> Result<SubjectStatus> {
        let no_way_back = GuardianError::NoWayBack { name: self.claim.name.to_string() };
        let last = self.driver.last_error.take();
        let error = match end {
            End::Over(status) | End::GaveUp(status) => return Ok(status),
            End::Left => return Err(last.unwrap_or(no_way_back)),
            End::Failed(Failure::NoWayBack) => no_way_back,
            End::Failed(Failure::LastError) => last.unwrap_or(no_way_back),
            End::Failed(Failure::NotRestorable { tried }) => {
                last.map_or(no_way_back, |last| self.not_restorable(tried, last))
            }
        };
        // Its number is free for a restore by hand.
        self.subject.release()?;
        Err(error)
    }

    /// Reports an event to the state machine. What follows is done by `act`.
    fn feed(&mut self, event: Event) {
        self.driver.actions.extend(self.driver.machine.step(Instant::now(), event));
        let state = self.driver.machine.state();
        self.voice.record.in_flight = self.driver.machine.in_flight().len();
        let shown = SubjectState::from(state);
        if self.voice.record.state != shown {
            self.voice.record.state = shown;
            self.voice.record.restarts = self.driver.machine.restart_count();
            // The rest is written with what else changes then.
            if !state.is_alive() && !matches!(state, State::Ended(_)) {
                self.write_record();
            }
        }
    }

    /// The subject has ended for good, or can be watched no more.
    pub(super) fn leave(&mut self, status: Option<SubjectStatus>) {
        self.leave_subject();
        // The newest state of a program that was told to end is worth as much as any.
        self.await_commits();
        self.taking.tracer.end();
        if let Some(status) = status {
            self.voice.journal.tell(SystemTime::now(), RunEvent::ended(self.subject.pid(), status));
            self.host.household.reap_orphans(self.tree.owner, model::Pid(0));
            self.files_ended();
            self.report_departed(self.driver.machine.next_sequence(), true);
        }
        self.write_record();
        self.voice.journal.end();
    }

    /// Waits for a signal, the subject's end, news or the next thing that is due. True when there is a signal.
    ///
    /// A signal that arrives while the subject is being restored waits for its next incarnation.
    fn wait(&self) -> Result<bool> {
        let (state, now) = (self.driver.machine.state(), Instant::now());
        let due = self.driver.machine.wake(now).map(|due| due.saturating_duration_since(now));
        let timeout = due.into_iter().chain(self.requests.look()).min().map(time::timespec);
        let is_settling = matches!(state, State::Restoring { step: Step::Settling(_), .. });
        let mut waiting = Vec::new();
        let mut add = |handle| waiting.push(PollFd::from_borrowed_fd(handle, PollFlags::IN));
        if !is_settling {
            add(self.host.signals.handle());
        }
        if state.is_alive() {
            [self.subject.handle(), self.taking.tracer.handle(), self.requests.handle()]
                .into_iter()
                .for_each(&mut add);
            self.tree.children.iter().map(Children::handle).for_each(&mut add);
        }
        self.taking.tracer.log().map(LogWriter::event).into_iter().for_each(&mut add);
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) => Ok(!is_settling && !waiting[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(Error::process("watch", self.subject.pid(), errno).into()),
        }
    }

    fn take_signals(&mut self) -> Result<()> {
        while let Some(request) = self.host.signals.poll()? {
            if request == Request::Child {
                self.host.has_orphans = true;
            }
            if let Request::End { signal, .. } = request {
                self.feed(Event::EndRequested(signal));
            }
            hand_on(request, &self.subject)?;
            if matches!(request, Request::Stop { .. }) {
                self.feed(Event::Continued);
            }
        }
        self.reap_orphans();
        Ok(())
    }

    /// An orphan that is being traced is its tracer's to wait for.
    fn reap_orphans(&mut self) {
        if self.host.has_orphans && !self.taking.tracer.is_tracing() {
            self.host.has_orphans = false;
            self.host.household.reap_orphans(self.tree.owner, self.subject.pid());
        }
    }

    /// Takes note of what the tracer and the log have told so far.
    fn hear(&mut self) {
        while let Some(news) = self.taking.tracer.hear() {
            self.note_news(news);
        }
        self.hear_log();
        self.reap_orphans();
        if !self.taking.tracer.is_tracing() {
            self.requests.tell_quiet();
        }
    }

    /// Does what the subject asks for.
    fn take_requests(&mut self) {
        let now = Instant::now();
        while let Some(Asked { word, asker }) = self.requests.poll(self.subject.pid()) {
            match word {
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

    fn hear_log(&mut self) {
        let completions = self.taking.tracer.log().map(LogWriter::take_completions).unwrap_or_default();
        for completion in completions {
            self.note_completion(completion);
        }
    }

    /// Keeps the tracer off the subject.
    fn leave_subject(&mut self) {
        for news in self.taking.tracer.leave_subject() {
            self.note_news(news);
        }
        self.reap_orphans();
    }

    /// Waits until nothing is being written any more.
    fn await_commits(&mut self) {
        self.hear_log();
        while self.driver.machine.in_flight().len() > 0 && self.taking.tracer.log().is_some() {
            self.taking.tracer.await_log();
            self.hear_log();
        }
    }

    fn write_record(&self) {
        self.voice.journal.set_now(&self.voice.record);
    }

    /// Tells once that the status cannot be written. While a checkpoint is being written the disk may be full of it
    /// only until that has failed, which is told as well.
    fn hear_journal(&mut self) {
        if let Some(error) = self.voice.journal.take_error()
            && self.driver.machine.in_flight().len() == 0
            && !std::mem::replace(&mut self.voice.told.status, true)
        {
            self.say(RunEvent::StatusUnwritable { reason: error.to_string() });
        }
    }

    /// Tells whoever runs us, and writes it down.
    fn report(&mut self, event: RunEvent) {
        self.voice.journal.tell(SystemTime::now(), event.clone());
        self.say(event);
    }
}

fn plan(request: &RunRequest, files: ChangedFiles) -> Plan {
    Plan {
        every: request.every,
        awaits_ready: request.await_ready,
        restart: request.policy,
        limit: request.limit,
        files,
        can_start: matches!(request.what, Guarded::Command(_)),
        in_flight_max: EPOCHS_IN_FLIGHT_MAX,
    }
}
