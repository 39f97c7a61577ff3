//! The event loop: hosts the state machine of one subject.
//!
//! Owns: in which order events are reported to the state machine, and the record for `status`.
//! Invariants: this thread waits for no disk while the subject runs; signals and commits that have arrived are reported
//! before a death; no child is reaped that may be traced.
//! Does not: trace a subject that runs, decide, carry out actions, or know the file's shape; their modules do.

mod actions;
mod death;
mod news;
mod rewind;
mod telling;

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use engine::{Phases, Slices};
use model::{PageCount, ProcessKey, Sequence};
use rustix::event::{PollFd, PollFlags, poll};
use store::{Completion, EPOCHS_IN_FLIGHT_MAX, LogWriter, Store};
use supervise::{Action, Beginning, End, Event, Failure, Plan, State, Step, SubjectStatus};
use sys::Error;

use self::telling::first_record;
use super::children::{ChildDeath, Children};
use super::claim::Claim;
use super::departed::Departed;
use super::events::RunEvent;
use super::leftovers::{Household, descendants};
use super::reasons::Reasons;
use super::requests::{Asked, Requests, Word};
use super::tracer::{Place, Tracer, Tracking};
use super::watching::Watching;
use super::{ChangedFiles, Guarded, RunRequest};
use crate::error::{GuardianError, Result};
use crate::files::{FilesReport, WrittenFiles};
use crate::foreground::Foreground;
use crate::journal::{Journal, What};
use crate::record::{Record, SubjectState};
use crate::restoring::hand_on;
use crate::signals::{Request, Signals};
use crate::streams::Streams;
use crate::subject::Subject;
use crate::time;

/// A checkpoint that was taken and is not durable yet.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    sequence: Sequence,
    arming: Duration,
    phases: Phases,
    slices: Slices,
    rounds: usize,
    precopied: PageCount,
    residual: PageCount,
}

/// What is told once in a run, and was.
#[derive(Clone, Copy, Default, Debug)]
struct Told {
    /// That the status cannot be written.
    status: bool,
    /// Files that can prevent a restart.
    files: bool,
    /// Files that prevent every restart.
    unknown_files: bool,
    /// What can be done about a program that kills its own children.
    child: bool,
    /// That the way back of files is lost, and not yet that there is one again.
    is_broken: bool,
}

/// What a guard is made of, each by one step of `run`.
pub(super) struct Parts {
    pub(super) store: Store,
    pub(super) claim: Claim,
    pub(super) household: Household,
    pub(super) signals: Signals,
    pub(super) requests: Requests,
    pub(super) children: Option<Children>,
    pub(super) subject: Subject,
    pub(super) first: Sequence,
    pub(super) streams: Streams,
    pub(super) foreground: Foreground,
    pub(super) log: LogWriter,
    pub(super) tracking: Tracking,
    pub(super) files: ChangedFiles,
    pub(super) no_rewind: Option<String>,
    pub(super) watching: Option<Watching>,
}

/// A subject being guarded.
pub(super) struct Guard<'a> {
    request: &'a RunRequest,
    tell: &'a mut dyn FnMut(&RunEvent<'_>),
    store: Store,
    claim: Claim,
    household: Household,
    signals: Signals,
    requests: Requests,
    /// Hears of deaths in the tree, if they count.
    children: Option<Children>,
    /// The death in the tree for which the root is being ended.
    child_death: Option<ChildDeath>,
    /// Decides what is done.
    machine: supervise::Subject,
    /// What it has decided, and is not done yet.
    actions: VecDeque<Action>,
    /// The incarnation that the rest of this guard knows.
    incarnation: u64,
    /// The error of the action that failed last.
    last_error: Option<GuardianError>,
    subject: Subject,
    /// Processes of the subject at its last checkpoint, for one that is no child of ours.
    known: Vec<ProcessKey>,
    /// Processes that have left its tree.
    departed: Departed,
    tracer: Tracer,
    /// Checkpoints that were taken and are not durable yet, rising.
    pending: VecDeque<InFlight>,
    /// What the log has told of a checkpoint before the tracer has.
    early: Option<Completion>,
    /// No process of this incarnation ran before, on CLOCK_MONOTONIC.
    resumed_after: Duration,
    /// What a restart does with files that have changed.
    files: ChangedFiles,
    /// The watch over them, if they go back.
    watching: Option<Watching>,
    /// Why checkpoints were taken that files cannot go back to.
    deferred: Reasons,
    /// Why the way back was lost so far.
    breaks: Reasons,
    /// Messages that wait until files have gone back, as they may go to one of them.
    waiting_messages: Option<Vec<String>>,
    /// Files that checkpoints have recorded.
    written: WrittenFiles,
    told: Told,
    reasons: Reasons,
    slowness: Reasons,
    /// A failure was reported, and no checkpoint after it.
    has_told_failure: bool,
    has_orphans: bool,
    record: Record,
    journal: Journal,
    streams: Streams,
    foreground: Foreground,
}

impl<'a> Guard<'a> {
    pub(super) fn new(
        request: &'a RunRequest,
        parts: Parts,
        tell: &'a mut dyn FnMut(&RunEvent<'_>),
    ) -> Result<Self> {
        let Parts { store, claim, household, signals, requests, mut children, subject, .. } = parts;
        let Parts { first, streams, foreground, log, tracking, files, no_rewind, watching, .. } = parts;
        children.as_mut().map_or(Ok(()), |children| children.begin(subject.pid(), Duration::ZERO))?;
        let record = first_record(request, &claim, &subject, first, &tracking)?;
        let record = Record { files: FilesReport::first(files.name(), no_rewind.as_deref()), ..record };
        let record = Record { requests: requests.name().to_owned(), ..record };
        let journal = Journal::start(&claim.directory, claim.name.as_str())?;
        let place = Place::new(&store, &claim.name, request);
        let newest = store.newest(&claim.name)?.map(|(sequence, _)| sequence);
        let beginning = Beginning { next: store.next_sequence(&claim.name)?, first, newest };
        let mut machine = supervise::Subject::new(plan(request, files), beginning, Instant::now());
        let actions = machine.step(Instant::now(), Event::Started).into();
        let mut guard = Self {
            request,
            tell,
            store,
            claim,
            household,
            signals,
            requests,
            children,
            child_death: None,
            incarnation: machine.incarnation(),
            machine,
            actions,
            last_error: None,
            known: descendants(subject.pid()),
            departed: Departed::default(),
            subject,
            tracer: Tracer::start(place, log, tracking)?,
            pending: VecDeque::with_capacity(EPOCHS_IN_FLIGHT_MAX),
            early: None,
            resumed_after: Duration::ZERO,
            files,
            watching,
            deferred: Reasons::default(),
            breaks: Reasons::default(),
            waiting_messages: None,
            written: WrittenFiles::default(),
            told: Told::default(),
            reasons: Reasons::default(),
            slowness: Reasons::default(),
            has_told_failure: false,
            has_orphans: false,
            record,
            journal,
            streams,
            foreground,
        };
        guard.tell_begin(no_rewind.as_deref());
        Ok(guard)
    }

    /// Tells that there is a subject, and why its files do not go back where nothing else was asked for.
    fn tell_begin(&mut self, no_rewind: Option<&str>) {
        match self.request.what {
            Guarded::Process(pid) => {
                let name = self.claim.name.clone();
                self.report(&RunEvent::Adopted { pid, name: name.as_str() });
            }
            Guarded::Command(_) => {
                let pid = self.subject.pid().get();
                self.journal.tell(SystemTime::now(), What::Started { pid, why: None });
            }
        }
        if let Some(why) = no_rewind {
            self.report(&RunEvent::FilesCompared(why));
        }
        self.write_record();
    }

    /// Guards until the subject has ended for good.
    pub(super) fn watch(&mut self) -> Result<SubjectStatus> {
        loop {
            if let Err(error) = self.turn() {
                // A checkpoint that is being taken is still one of this subject's.
                self.leave_subject();
                self.last_error = Some(error);
                self.feed(Event::Failed);
            }
            let state = self.machine.state();
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
        if !self.machine.state().is_alive() {
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
        if !self.tracer.is_tracing() && self.foreground.follow_stop(&self.subject)? {
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
        let last = self.last_error.take();
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
        self.actions.extend(self.machine.step(Instant::now(), event));
        let state = self.machine.state();
        self.record.in_flight = self.machine.in_flight().len();
        let shown = SubjectState::from(state);
        if self.record.state != shown {
            self.record.state = shown;
            self.record.restarts = self.machine.restart_count();
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
        self.tracer.end();
        if let Some(status) = status {
            let (pid, signal, exit) = (self.subject.pid().get(), status.signal(), status.exit());
            self.journal.tell(SystemTime::now(), What::Ended { pid, signal, exit });
            self.household.reap_orphans(model::Pid(0));
            self.files_ended();
            self.report_departed(self.machine.next_sequence(), true);
        }
        self.write_record();
        self.journal.end();
    }

    /// Waits for a signal, the subject's end, news or the next thing that is due. True when there is a signal.
    ///
    /// A signal that arrives while the subject is being restored waits for its next incarnation.
    fn wait(&self) -> Result<bool> {
        let (state, now) = (self.machine.state(), Instant::now());
        let due = self.machine.wake(now).map(|due| due.saturating_duration_since(now));
        let timeout = due.into_iter().chain(self.requests.look()).min().map(time::timespec);
        let is_settling = matches!(state, State::Restoring { step: Step::Settling(_), .. });
        let mut waiting = Vec::new();
        let mut add = |handle| waiting.push(PollFd::from_borrowed_fd(handle, PollFlags::IN));
        if !is_settling {
            add(self.signals.handle());
        }
        if state.is_alive() {
            [self.subject.handle(), self.tracer.handle(), self.requests.handle()]
                .into_iter()
                .for_each(&mut add);
            self.children.iter().map(Children::handle).for_each(&mut add);
        }
        self.tracer.log().map(LogWriter::event).into_iter().for_each(&mut add);
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) => Ok(!is_settling && !waiting[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(Error::process("watch", self.subject.pid(), errno).into()),
        }
    }

    fn take_signals(&mut self) -> Result<()> {
        while let Some(request) = self.signals.poll()? {
            if request == Request::Child {
                self.has_orphans = true;
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
        if self.has_orphans && !self.tracer.is_tracing() {
            self.has_orphans = false;
            self.household.reap_orphans(self.subject.pid());
        }
    }

    /// Takes note of what the tracer and the log have told so far.
    fn hear(&mut self) {
        while let Some(news) = self.tracer.hear() {
            self.note_news(news);
        }
        self.hear_log();
        self.reap_orphans();
        if !self.tracer.is_tracing() {
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
                self.report(&RunEvent::HoldEnded(pid));
            }
        }
        self.feed(Event::Holds(self.requests.is_held()));
    }

    fn hear_log(&mut self) {
        let completions = self.tracer.log().map(LogWriter::take_completions).unwrap_or_default();
        for completion in completions {
            self.note_completion(completion);
        }
    }

    /// Keeps the tracer off the subject.
    fn leave_subject(&mut self) {
        for news in self.tracer.leave_subject() {
            self.note_news(news);
        }
        self.reap_orphans();
    }

    /// Waits until nothing is being written any more.
    fn await_commits(&mut self) {
        self.hear_log();
        while self.machine.in_flight().len() > 0 && self.tracer.log().is_some() {
            self.tracer.await_log();
            self.hear_log();
        }
    }

    fn write_record(&self) {
        self.journal.set_now(&self.record);
    }

    /// Tells once that the status cannot be written. While a checkpoint is being written the disk may be full of it
    /// only until that has failed, which is told as well.
    fn hear_journal(&mut self) {
        if let Some(error) = self.journal.take_error()
            && self.machine.in_flight().len() == 0
            && !std::mem::replace(&mut self.told.status, true)
        {
            self.say(&RunEvent::StatusUnwritable(&error));
        }
    }

    /// Tells whoever runs us, and writes it down.
    fn report(&mut self, event: &RunEvent<'_>) {
        self.journal.tell(SystemTime::now(), event.what());
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
