//! The event loop: one subject, its checkpoints, its deaths.
//!
//! Owns: what happens in which order, and the record for `status`.
//! Invariants: this thread waits for no disk while the subject runs; signals and commits that have arrived are seen
//! before a death is judged; no child is reaped that may be traced.
//! Does not: trace a subject that runs, know policy, pace or the file's shape, or what news mean; their modules do.

mod death;
mod news;
mod rewind;
mod telling;

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use engine::{CheckpointOptions, Phases, Slices};
use model::{PageCount, ProcessKey, Sequence, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use store::{Completion, EPOCHS_IN_FLIGHT_MAX, LogWriter, Store};
use supervise::{BackOff, Pace, Restarts, SubjectStatus, Suspicion};
use sys::Error;

use self::death::Next;
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
use crate::error::Result;
use crate::files::{FilesReport, WrittenFiles};
use crate::foreground::Foreground;
use crate::journal::{Journal, What};
use crate::record::Record;
use crate::restoring::hand_on;
use crate::signals::{Request, Signals};
use crate::streams::Streams;
use crate::subject::Subject;
use crate::time;

/// Checkpoints that were due while the one before was still being copied.
const SLOW_COPY: &str = "the checkpoint before was still being copied";
/// Checkpoints that were due while the log had as much to write as it takes.
const SLOW_STORE: &str = "the store was still writing earlier checkpoints";

/// Checkpoints that were due while the subject had asked for none to be taken.
const HELD: &str = "the program holds checkpoints back";
/// How long a process takes to die at most, as far as it is waited for.
const DYING: Duration = Duration::from_millis(20);

/// Who was asked to end, and when.
#[derive(Clone, Copy, Debug)]
struct Ending {
    signal: Signal,
    at: Instant,
}

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
    /// The subject has said that it is, or is taken for it.
    is_ready: bool,
    subject: Subject,
    /// Processes of the subject at its last checkpoint, for one that is no child of ours.
    known: Vec<ProcessKey>,
    /// Processes that have left its tree.
    departed: Departed,
    pace: Pace,
    tracer: Tracer,
    /// Checkpoints that were taken and are not durable yet, rising.
    pending: VecDeque<InFlight>,
    /// What the log has told of a checkpoint before the tracer has.
    early: Option<Completion>,
    /// The number of the next one.
    next: Sequence,
    /// The due time that passed without a checkpoint, as far as it was counted.
    held_back: Option<Instant>,
    restarts: Restarts,
    suspicion: Suspicion,
    back_off: BackOff,
    /// No process of this incarnation ran before, on CLOCK_MONOTONIC.
    resumed_after: Duration,
    /// When this incarnation began, and the checkpoints committed before it.
    began: Instant,
    checkpoints_before: u64,
    /// Why the next incarnation begins anew although there are checkpoints.
    fresh_reason: Option<String>,
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
    /// The newest checkpoint that this life descends from.
    descends: Option<Sequence>,
    /// The first checkpoint that is one of this program's.
    first: Sequence,
    ending: Option<Ending>,
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
        let pace = Pace::new(request.every, Instant::now());
        let record = first_record(request, &claim, &subject, first, &tracking)?;
        let record = Record { files: FilesReport::first(files.name(), no_rewind.as_deref()), ..record };
        let record = Record { requests: requests.name().to_owned(), ..record };
        let journal = Journal::start(&claim.directory, claim.name.as_str())?;
        let descends =
            store.newest(&claim.name)?.map(|(sequence, _)| sequence).filter(|found| *found >= first);
        let place = Place::new(&store, &claim.name, request);
        let next = store.next_sequence(&claim.name)?;
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
            is_ready: !request.await_ready || matches!(request.what, Guarded::Process(_)),
            known: descendants(subject.pid()),
            departed: Departed::default(),
            subject,
            pace,
            tracer: Tracer::start(place, log, tracking)?,
            pending: VecDeque::with_capacity(EPOCHS_IN_FLIGHT_MAX),
            early: None,
            next,
            held_back: None,
            restarts: Restarts::new(request.limit),
            suspicion: Suspicion::new(request.limit.window),
            back_off: BackOff::default(),
            resumed_after: Duration::ZERO,
            began: Instant::now(),
            checkpoints_before: 0,
            fresh_reason: None,
            files,
            watching,
            deferred: Reasons::default(),
            breaks: Reasons::default(),
            waiting_messages: None,
            written: WrittenFiles::default(),
            told: Told::default(),
            descends,
            first,
            ending: None,
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
            let signalled = self.wait()?;
            if signalled {
                self.take_signals()?;
            }
            self.take_requests();
            self.hear();
            self.hear_children()?;
            if let Some(status) = self.subject.ended()? {
                match self.after_death(status)? {
                    Next::End(status) => return Ok(status),
                    Next::GoOn => continue,
                }
            }
            if !self.tracer.is_tracing() && self.foreground.follow_stop(&self.subject)? {
                self.pace.begin(Instant::now());
            }
            self.checkpoint_if_due();
            self.hear_journal();
        }
    }

    /// The subject has ended for good, or can be watched no more.
    pub(super) fn leave(&mut self, status: Option<SubjectStatus>) {
        self.leave_subject();
        // The newest state of a program that was told to end is worth as much as any.
        self.await_commits(None);
        self.tracer.end();
        if let Some(status) = status {
            let (pid, signal, exit) = (self.subject.pid().get(), status.signal(), status.exit());
            self.journal.tell(SystemTime::now(), What::Ended { pid, signal, exit });
            self.household.reap_orphans(model::Pid(0));
            self.files_ended();
            self.report_departed(self.next, true);
        } else if self.record.state == "running" {
            self.record.state = "unprotected".to_owned();
        }
        self.write_record();
        self.journal.end();
    }

    /// Waits for a signal, the subject's end, news or the next thing that is due. True when there is a signal.
    fn wait(&self) -> Result<bool> {
        let due = if self.can_take() { self.due() } else { None };
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = left.into_iter().chain(self.requests.look()).min().map(time::timespec);
        let mut waiting = vec![
            PollFd::from_borrowed_fd(self.signals.handle(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.subject.handle(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.tracer.handle(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.requests.handle(), PollFlags::IN),
        ];
        waiting.extend(
            self.children.iter().map(|children| PollFd::from_borrowed_fd(children.handle(), PollFlags::IN)),
        );
        waiting.extend(self.tracer.log().map(|log| PollFd::from_borrowed_fd(log.event(), PollFlags::IN)));
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) => Ok(!waiting[0].revents().is_empty()),
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
                self.ending = Some(Ending { signal, at: Instant::now() });
            }
            hand_on(request, &self.subject)?;
            if matches!(request, Request::Stop { .. }) {
                self.pace.begin(Instant::now());
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

    /// Whether a checkpoint would be taken now if it were due.
    fn can_take(&self) -> bool {
        self.tracer.is_idle()
            && self.pending.len() < EPOCHS_IN_FLIGHT_MAX
            && !self.requests.is_held()
            && self.child_death.is_none()
    }

    /// When the next checkpoint is due.
    fn due(&self) -> Option<Instant> {
        if self.requests.wants_checkpoint() {
            return Some(Instant::now());
        }
        self.is_ready.then(|| self.pace.next())
    }

    fn checkpoint_if_due(&mut self) {
        let Some(due) = self.due().filter(|due| *due <= Instant::now()) else { return };
        if !self.can_take() {
            // The rate falls, and nothing piles up. What passes while one is taken is counted when it was.
            let is_round = due == self.pace.next() && self.tracer.is_idle();
            if is_round && self.held_back.replace(due) != Some(due) {
                let reason = if self.requests.is_held() { HELD } else { SLOW_STORE };
                self.hold_back(reason, 1);
            }
        } else if self.tracer.log().is_none_or(|log| log.check().is_err()) {
            self.hear_log();
            self.pending.clear();
            self.tracer.open_again();
        } else {
            let options = CheckpointOptions {
                kill: false,
                lose_connections: self.request.lose_connections,
                name: self.claim.name.to_string(),
                sequence: self.next,
                inherited: self.streams.identities(),
            };
            self.requests.taking(self.next);
            self.tracer.take(self.subject.key(), options);
        }
    }

    /// A checkpoint was taken, and rounds may have passed meanwhile. If it began late, they are told with the reason of
    /// that.
    fn advance(&mut self, pause: Duration, reason: &str) {
        let began_late = self.held_back == Some(self.pace.next());
        let passed = self.pace.taken(pause, Instant::now());
        if passed > 0 && !began_late {
            self.hold_back(reason, passed);
        }
    }

    fn hold_back(&mut self, reason: &str, rounds: u32) {
        self.slowness.note_many(reason, rounds);
        self.record.held_back = self.slowness.counts();
        self.journal.set(&self.record);
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
                Word::Checkpoint => self.requests.want(asker),
                Word::Hold => self.requests.hold(asker, now),
                Word::Release => self.requests.release(&asker),
                Word::Ready => {
                    self.is_ready = true;
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

    /// Waits until nothing is being written any more, at most until a deadline.
    fn await_commits(&mut self, deadline: Option<Instant>) {
        self.hear_log();
        while !self.pending.is_empty()
            && self.tracer.log().is_some()
            && deadline.is_none_or(|deadline| Instant::now() < deadline)
        {
            self.tracer.await_log(deadline);
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
            && self.pending.is_empty()
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
