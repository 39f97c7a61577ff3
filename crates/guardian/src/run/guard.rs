//! The event loop: one subject, its checkpoints, its deaths.
//!
//! Owns: what happens in which order after a death, and the record for `status`.
//! Invariants: all that touches the subject runs on one thread, to which ptrace is bound; that thread waits for no
//! disk while the subject runs; a dead child keeps its number until the restore is about to need it; signals and
//! commits that have arrived are seen before a death is judged.
//! Does not: know policy, pace, the write of a checkpoint or the file's shape; their modules do.

use std::time::{Duration, Instant, SystemTime};

use engine::{CheckpointOptions, EngineError, RestoreOptions};
use model::{ProcessKey, Sequence, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use store::{Store, WriteOptions};
use sys::Error;

use super::claim::Claim;
use super::events::RunEvent;
use super::leftovers::{Household, descendants};
use super::pace::Pace;
use super::policy::{Restarts, Suspicion};
use super::reasons::Reasons;
use super::writing::{self, News, Write};
use super::{Guarded, RunRequest, policy, spawn};
use crate::error::{GuardianError, Result};
use crate::record::{Death, PauseMicroseconds, ProcessName, Record, RecordFile, boot};
use crate::restoring::hand_on;
use crate::signals::{Request, Signals};
use crate::streams::Streams;
use crate::subject::{Subject, SubjectStatus};
use crate::time;

/// How long a death counts as asked for after a signal that programs may also survive, like Ctrl-C.
const SOFT_REQUEST: Duration = Duration::from_secs(60);
/// How long a number that is taken is waited for: its holder may be a process that is just ending.
const PID_PATIENCE: Duration = Duration::from_secs(2);
/// How long the only checkpoint is waited for: a disk that takes longer has failed, and an hour's work is worth it.
const NO_OTHER_PATIENCE: Duration = Duration::from_secs(600);
/// How often it is tried meanwhile.
const PID_NAP: Duration = Duration::from_millis(20);
const INT: Signal = Signal(2);
const QUIT: Signal = Signal(3);

/// Who was asked to end, and when.
#[derive(Clone, Copy, Debug)]
struct Ending {
    signal: Signal,
    at: Instant,
}

/// What follows a death.
enum Next {
    /// The run is over.
    End(SubjectStatus),
    /// There is a subject again.
    GoOn,
}

/// A subject being guarded.
pub(super) struct Guard<'a> {
    request: &'a RunRequest,
    tell: &'a mut dyn FnMut(&RunEvent<'_>),
    store: Store,
    claim: Claim,
    household: Household,
    signals: Signals,
    subject: Subject,
    /// Processes of the subject at its last checkpoint, for one that is no child of ours.
    known: Vec<ProcessKey>,
    pace: Pace,
    /// The checkpoint that is being written; one at a time.
    write: Option<Write>,
    restarts: Restarts,
    suspicion: Suspicion,
    /// The newest checkpoint that this life descends from.
    descends: Option<Sequence>,
    /// The first checkpoint that is one of this program's.
    first: Sequence,
    ending: Option<Ending>,
    reasons: Reasons,
    failing: bool,
    is_status_told: bool,
    record: Record,
    file: RecordFile,
    streams: Streams,
}

impl<'a> Guard<'a> {
    #[expect(clippy::too_many_arguments, reason = "each is made by one step of `run`, and owned from here")]
    pub(super) fn new(
        request: &'a RunRequest,
        store: Store,
        claim: Claim,
        household: Household,
        signals: Signals,
        subject: Subject,
        first: Sequence,
        streams: Streams,
        tell: &'a mut dyn FnMut(&RunEvent<'_>),
    ) -> Result<Self> {
        let pace = Pace::new(request.every, Instant::now());
        let own = tracee::procfs::key(model::Pid(std::process::id() as i32))?;
        let record = Record {
            name: claim.name.to_string(),
            boot: boot(),
            guardian: ProcessName::of(own),
            root: ProcessName::of(subject.key()),
            state: "running".to_owned(),
            policy: request.policy.name().to_owned(),
            incarnation: 1,
            first_sequence: first.get(),
            requested_hz: pace.requested_hz(),
            ..Record::default()
        };
        let file = RecordFile::new(&claim.directory);
        let descends =
            store.newest(&claim.name)?.map(|(sequence, _)| sequence).filter(|found| *found >= first);
        if let Guarded::Process(pid) = request.what {
            tell(&RunEvent::Adopted { pid, name: claim.name.as_str() });
        }
        let mut guard = Self {
            request,
            tell,
            store,
            claim,
            household,
            signals,
            known: descendants(subject.pid()),
            subject,
            pace,
            write: None,
            restarts: Restarts::new(request.limit),
            suspicion: Suspicion::new(request.limit.window),
            descends,
            first,
            ending: None,
            reasons: Reasons::default(),
            failing: false,
            is_status_told: false,
            record,
            file,
            streams,
        };
        guard.write_record();
        Ok(guard)
    }

    /// Guards until the subject has ended for good.
    pub(super) fn watch(&mut self) -> Result<SubjectStatus> {
        loop {
            let signalled = self.wait()?;
            if signalled {
                self.take_signals()?;
            }
            self.hear_write();
            if let Some(status) = self.subject.ended()? {
                match self.after_death(status)? {
                    Next::End(status) => return Ok(status),
                    Next::GoOn => continue,
                }
            }
            let now = Instant::now();
            if self.write.is_none() && self.pace.next() <= now {
                self.checkpoint();
            }
            if let Err(error) = self.file.write_if_due(&self.record, Instant::now()) {
                self.report_unwritable(&error);
            }
        }
    }

    /// The subject has ended for good, or can be watched no more.
    pub(super) fn leave(&mut self, status: Option<SubjectStatus>) {
        // The newest state of a program that was told to end is worth as much as any.
        self.await_write();
        if status.is_some() {
            self.household.reap_orphans(model::Pid(0));
        } else if self.record.state == "running" {
            self.record.state = "unprotected".to_owned();
        }
        self.write_record();
    }

    /// Waits for a signal, the subject's end, news of the write or the next thing that is due. True when there is a
    /// signal.
    fn wait(&self) -> Result<bool> {
        // The next checkpoint waits for the end of this one's write, which rings.
        let next = self.write.is_none().then(|| self.pace.next());
        let due = [self.file.due(), next].into_iter().flatten().min();
        let timeout = due.map(|due| time::timespec(due.saturating_duration_since(Instant::now())));
        let mut waiting = vec![
            PollFd::from_borrowed_fd(self.signals.handle(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.subject.handle(), PollFlags::IN),
        ];
        waiting
            .extend(self.write.as_ref().map(|write| PollFd::from_borrowed_fd(write.handle(), PollFlags::IN)));
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) => Ok(!waiting[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(Error::process("watch", self.subject.pid(), errno).into()),
        }
    }

    fn take_signals(&mut self) -> Result<()> {
        while let Some(request) = self.signals.poll()? {
            if request == Request::Child {
                self.household.reap_orphans(self.subject.pid());
            }
            if let Request::End { signal, .. } = request {
                self.ending = Some(Ending { signal, at: Instant::now() });
            }
            hand_on(request, &self.subject)?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) {
        match self.take_checkpoint() {
            Ok(()) => {}
            // One that has died is no reason against checkpoints; the loop will see.
            Err(_) if matches!(self.subject.ended(), Ok(Some(_))) => {}
            Err(error) => self.note_failure(&error),
        }
    }

    /// Takes all that there is to take from the subject, and leaves the rest to a thread: a death meanwhile is
    /// noticed at once.
    fn take_checkpoint(&mut self) -> Result<()> {
        let name = &self.claim.name;
        let sequence = self.store.next_sequence(name)?;
        let writer = self.store.begin(name, sequence, WriteOptions::default())?;
        let options = CheckpointOptions {
            kill: false,
            name: name.to_string(),
            sequence,
            inherited: self.streams.identities(),
        };
        match engine::capture(self.subject.pid(), &writer, &options) {
            Ok(captured) => {
                let keep = self.request.keep;
                self.write = Some(Write::commit(&self.store, name, keep, captured, writer)?);
                self.known = descendants(self.subject.pid());
                Ok(())
            }
            Err(error) => {
                self.write = Some(Write::discard(writer)?);
                Err(error.into())
            }
        }
    }

    /// Takes note of what the write has told so far.
    fn hear_write(&mut self) {
        while let Some(news) = self.write.as_mut().and_then(Write::hear) {
            self.note_news(news);
        }
        self.write.take_if(|write| write.is_over());
    }

    /// Waits until the checkpoint that is being written is committed or given up, at most until a deadline.
    fn await_commit(&mut self, deadline: Option<Instant>) {
        while let Some(write) = self.write.as_mut().filter(|write| write.pending().is_some())
            && let Some(news) = write.listen(deadline)
        {
            self.note_news(news);
        }
        self.hear_write();
    }

    /// Waits until the write and what follows it are over.
    fn await_write(&mut self) {
        while let Some(news) = self.write.as_mut().and_then(|write| write.listen(None)) {
            self.note_news(news);
        }
        self.hear_write();
    }

    fn note_news(&mut self, news: News) {
        match news {
            News::Committed(sequence, pause) => self.note_commit(sequence, pause),
            News::Failed(error) => self.note_failure(&error),
            News::Pruned(Some(oldest)) => self.suspicion.forget_below(Sequence(oldest.get() + 1)),
            News::Pruned(None) => {}
        }
    }

    fn note_commit(&mut self, sequence: Sequence, pause: Duration) {
        self.pace.committed(pause, Instant::now());
        self.descends = Some(sequence);
        self.suspicion.committed(sequence);
        self.record.checkpoints += 1;
        self.record.last_checkpoint = Some(time::rfc3339(SystemTime::now()));
        self.note_pace();
        self.file.touch();
        if std::mem::take(&mut self.failing) {
            (self.tell)(&RunEvent::CheckpointsAgain(sequence));
        }
    }

    /// Decides about the checkpoint that was being written when the subject died. It is waited for while that costs
    /// little, or when there is no other; else it is called off, so that it never stands beside the life that is to
    /// begin at an older one.
    fn settle_write(&mut self, noticed: Instant) -> Result<()> {
        let Some(pending) = self.write.as_ref().and_then(Write::pending) else { return Ok(()) };
        let has_other = self.suspicion.choose(&self.committed()?).is_some();
        let patience = if has_other { writing::patience(self.request.every) } else { NO_OTHER_PATIENCE };
        self.await_commit(Some(noticed + patience));
        self.call_off_write(pending);
        Ok(())
    }

    /// Sees to it that the checkpoint which is being written never becomes one, or is one from now on.
    fn call_off_write(&mut self, pending: Sequence) {
        let Some(write) = self.write.as_mut().filter(|write| write.pending().is_some()) else { return };
        if write.call_off() {
            (self.tell)(&RunEvent::CheckpointDropped(pending));
        } else {
            // All of it is durable, and its name is just being made so.
            self.await_commit(None);
        }
    }

    fn note_failure(&mut self, error: &GuardianError) {
        self.pace.failed(Instant::now());
        self.failing = true;
        if self.reasons.note(&error.to_string()) {
            (self.tell)(&RunEvent::CheckpointFailed(error));
        }
        self.record.refusals = self.reasons.counts();
        self.file.touch();
    }

    fn after_death(&mut self, status: SubjectStatus) -> Result<Next> {
        let noticed = Instant::now();
        // A signal may have come just before: it decides whether anybody wanted this.
        self.take_signals()?;
        self.record.last_death = Some(death(status));
        if self.was_asked_for(status) || !self.request.policy.restarts(status) {
            self.record.state = "ended".to_owned();
            return Ok(Next::End(status));
        }
        (self.tell)(&RunEvent::Died { pid: self.subject.pid(), status });
        if !self.restarts.admit(noticed) {
            (self.tell)(&RunEvent::GaveUp(self.request.limit));
            self.record.state = "gave-up".to_owned();
            return Ok(Next::End(status));
        }
        self.record.state = "restoring".to_owned();
        self.record.restarts += 1;
        self.write_record();
        let outcome = self.bring_back(status, noticed);
        if outcome.is_err() {
            self.record.state = "failed".to_owned();
        }
        outcome?;
        self.begin_life();
        Ok(Next::GoOn)
    }

    /// Whether the subject was asked to end, by a signal to us.
    fn was_asked_for(&self, status: SubjectStatus) -> bool {
        let Some(Ending { signal, at }) = self.ending else { return false };
        let soft = signal == INT || signal == QUIT;
        !soft || status == SubjectStatus::Killed(signal) || at.elapsed() < SOFT_REQUEST
    }

    /// Makes the subject run again: from a checkpoint, or from its beginning.
    fn bring_back(&mut self, status: SubjectStatus, noticed: Instant) -> Result<()> {
        self.household.clear(self.subject.pid(), &self.known)?;
        if policy::is_clean(status) {
            if let Some(pending) = self.write.as_ref().and_then(Write::pending) {
                self.call_off_write(pending);
            }
            return self.start_afresh();
        }
        self.settle_write(noticed)?;
        if let Some(from) = self.descends
            && let Some(poisoned) = self.suspicion.died(from, status, noticed)
        {
            (self.tell)(&RunEvent::Poisoned(poisoned));
        }
        let committed = self.committed()?;
        let mut last = None;
        while let Some(sequence) = self.suspicion.choose(&committed) {
            match self.restore(sequence) {
                Ok(()) => {
                    self.suspicion.begins(sequence, Instant::now());
                    self.descends = Some(sequence);
                    let (pid, took) = (self.subject.pid(), noticed.elapsed());
                    (self.tell)(&RunEvent::Restored { pid, sequence, took });
                    return Ok(());
                }
                Err(error) => {
                    self.household.clear_construction()?;
                    self.suspicion.unusable(sequence);
                    (self.tell)(&RunEvent::RestoreFailed(sequence, &error));
                    last = Some(error);
                }
            }
        }
        match last {
            // Starting afresh would throw away what the checkpoints hold, and nobody asked for that.
            Some(last) => Err(GuardianError::NotRestorable {
                name: self.claim.name.to_string(),
                tried: committed.len(),
                last: Box::new(last),
            }),
            None => self.start_afresh(),
        }
    }

    /// This program's own checkpoints, in rising order.
    fn committed(&self) -> Result<Vec<Sequence>> {
        let images = self.store.list(&self.claim.name)?;
        // Older ones than are kept may be on their way out.
        let beyond = if self.write.is_some() { images.len().saturating_sub(self.request.keep) } else { 0 };
        let found = images.into_iter().skip(beyond).map(|(sequence, _)| sequence);
        Ok(found.filter(|found| *found >= self.first).collect())
    }

    fn restore(&mut self, sequence: Sequence) -> Result<()> {
        let path = self.store.get(&self.claim.name, sequence)?;
        let started = Instant::now();
        loop {
            let reader = self.store.read(&path)?;
            let options = RestoreOptions {
                pid: engine::PidPolicy::Same,
                inherited: self.streams.duplicates()?,
                connections_lost: true,
                ..RestoreOptions::default()
            };
            // Until here the dead root has kept its number from others.
            self.subject.release()?;
            match engine::restore(reader, options) {
                Ok(restored) => {
                    self.subject = Subject::child(restored.root)?;
                    return Ok(());
                }
                Err(EngineError::PidTaken(_) | EngineError::PidUnreaped { .. })
                    if started.elapsed() < PID_PATIENCE =>
                {
                    self.household.clear_construction()?;
                    std::thread::sleep(PID_NAP);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn start_afresh(&mut self) -> Result<()> {
        let Guarded::Command(words) = &self.request.what else {
            return Err(GuardianError::NoWayBack { name: self.claim.name.to_string() });
        };
        self.subject.release()?;
        self.subject = spawn(words, &self.signals)?;
        self.descends = None;
        self.suspicion.begins_afresh();
        // What older lives have left is not the past of this one.
        self.first = self.store.next_sequence(&self.claim.name)?;
        (self.tell)(&RunEvent::StartedAfresh(self.subject.pid()));
        Ok(())
    }

    fn begin_life(&mut self) {
        self.ending = None;
        self.pace.begin(Instant::now());
        self.known = descendants(self.subject.pid());
        self.record.state = "running".to_owned();
        self.record.incarnation += 1;
        self.record.root = ProcessName::of(self.subject.key());
        self.record.first_sequence = self.first.get();
        self.write_record();
    }

    fn note_pace(&mut self) {
        let pauses = self.pace.pauses();
        self.record.achieved_hz = self.pace.achieved_hz();
        self.record.pause_us = PauseMicroseconds {
            p50: time::microseconds(pauses.p50),
            p99: time::microseconds(pauses.p99),
            max: time::microseconds(pauses.max),
        };
    }

    fn write_record(&mut self) {
        if let Err(error) = self.file.write(&self.record) {
            self.report_unwritable(&error);
        }
    }

    /// Tells once that the status cannot be written. While an image is being written the disk may be full of it only
    /// until that has failed, which is told as well.
    fn report_unwritable(&mut self, error: &GuardianError) {
        if self.write.is_none() && !std::mem::replace(&mut self.is_status_told, true) {
            (self.tell)(&RunEvent::StatusUnwritable(error));
        }
    }
}

fn death(status: SubjectStatus) -> Death {
    let (signal, exit) = match status {
        SubjectStatus::Exited(code) => (None, Some(code)),
        SubjectStatus::Killed(signal) => (Some(signal.get()), None),
        SubjectStatus::Unknown => (None, None),
    };
    Death { signal, exit, time: time::rfc3339(SystemTime::now()) }
}
