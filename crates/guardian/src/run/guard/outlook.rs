//! What a death of a guarded subject would bring now, and warnings before the death.
//!
//! Owns: this fact in the status, the report that the newest checkpoint with file rollback is too old, and the reports
//! about late checkpoints.
//! Invariants: each state is reported when it begins, and when it ends. A late checkpoint is reported again only after
//! twice the time.
//! Does not: decide what a death brings; `supervise` does.

use std::time::{Duration, Instant};

use model::{Pid, Sequence};
use supervise::{FileChanges, FreshReason, Prospect, RestartPolicy, State, Survey};
use tracee::{procfs, tree};

use super::super::request::Guarded;
use super::super::watching::BEGINNING;
use super::actions::EACH_DIED;
use super::parts::Guard;
use crate::event::RunEvent;
use crate::event::reason::{changed_since, output_sent, told, too_old};
use crate::record::{Brings, DeathNow, LateReport};
use crate::time;

/// Checkpoints are late if none was committed for this number of intervals, and for at least [`LATE_MIN`].
const LATE_INTERVALS: u32 = 4;
const LATE_MIN: Duration = Duration::from_secs(2);
/// The state of a thread in `/proc/PID/stat` that no signal and no tracer can stop.
const UNINTERRUPTIBLE: char = 'D';
/// Interval between two inspections while the newest checkpoint with file rollback is too old.
const INSPECTION_INTERVAL: Duration = Duration::from_secs(1);

/// Returns a description of a thread of a tree that waits in the kernel and cannot be stopped meanwhile. Examples: a
/// thread in vfork(2) whose child does not call execve(2), or a thread that uses a network file system without a server.
fn unstoppable_in(root: Pid) -> Option<String> {
    for pid in tree::descendants(root).ok()? {
        for tid in procfs::threads(pid).unwrap_or_default() {
            if procfs::thread_stat(pid, tid).is_ok_and(|stat| stat.state == UNINTERRUPTIBLE) {
                let place = procfs::read_text(procfs::path_of_thread(pid, tid, "wchan")).unwrap_or_default();
                return Some(format!(
                    "thread {tid} of pid {pid} waits in the kernel ({}) and cannot be stopped",
                    place.trim_end()
                ));
            }
        }
    }
    None
}

impl Guard {
    /// Returns the time when `look_out` is due.
    pub(super) fn outlook_due(&self) -> Option<Instant> {
        [self.late_from(), self.files.outlook_due].into_iter().flatten().min()
    }

    /// Renews what has changed only because time has passed.
    pub(super) fn look_out(&mut self) {
        let now = self.rebuild.host.clock.now();
        if self.files.outlook_due.is_some_and(|due| due <= now) {
            let facts = &self.voice.record.facts;
            let brought = |death_now: &Option<DeathNow>| death_now.as_ref().map(|now| (now.brings, now.seq));
            let before = brought(&facts.death_now);
            self.renew_outlook();
            if brought(&self.voice.record.facts.death_now) != before {
                self.voice.journal.set(&self.voice.record);
            }
        }
        if self.late_from().is_some_and(|late| late <= now) {
            self.report_late(now);
        }
    }

    /// Determines what a death now would bring.
    pub(super) fn renew_outlook(&mut self) {
        self.files.outlook_due = None;
        let is_restarted = self.request.policy != RestartPolicy::Never;
        let Some(log) = self.taking.tracer.log().filter(|_| is_restarted) else { return };
        if self.driver.machine.is_asked_to_end() {
            let why = Some("the program was asked to end".to_owned());
            self.voice.record.facts.death_now =
                Some(DeathNow { brings: Brings::End, why, ..DeathNow::default() });
            return;
        }
        let now = self.rebuild.host.clock.now();
        let mut survey = self.rebuild.survey_of(log.status().kept);
        let machine = &self.driver.machine;
        let mut prospect = machine.prospect(&survey, now);
        use FreshReason::{OutputSent, Told, TooOld};
        if matches!(prospect, Prospect::BegunAnew(Some(TooOld(_) | OutputSent(_) | Told(_)))) {
            survey.unchanged_from = self.rebuild.unchanged_from();
            prospect = machine.prospect(&survey, now);
        }
        let can_start = matches!(self.request.what, Guarded::Command(_));
        let (brings, sequence, why) = match prospect {
            Prospect::Restored(sequence) => (Brings::Restore, Some(sequence), None),
            // The command of an adopted program is not known.
            Prospect::BegunAgain(why) | Prospect::BegunAnew(why) if !can_start => (Brings::End, None, why),
            Prospect::BegunAgain(_) => (Brings::Beginning, Some(BEGINNING), None),
            Prospect::BegunAnew(why) => (Brings::PresentFiles, None, why),
            Prospect::GivenUp => (Brings::End, None, None),
            Prospect::Refused(newest) => (Brings::End, None, Some(FreshReason::ChangedSince(newest))),
        };
        if let Some(watching) = self.rebuild.watching() {
            let until = sequence.and_then(|sequence| machine.files_back_until(sequence, now));
            // The program can sync a file and send data at any time.
            let next = now + INSPECTION_INTERVAL;
            let until = until.filter(|until| *until > now && !watching.respects_syncs).unwrap_or(next);
            // The bound itself is still permitted.
            self.files.outlook_due = Some(until + Duration::from_millis(1));
        } else if survey.changes != FileChanges::Unknown {
            self.files.outlook_due = Some(now + INSPECTION_INTERVAL);
        }
        let ago = sequence.and_then(|sequence| machine.work_since(sequence, now));
        let taken = ago.and_then(|ago| self.rebuild.host.clock.wall().checked_sub(ago)).map(time::rfc3339);
        self.note_too_old(why, &survey);
        let why = why.map(|why| match why {
            FreshReason::TooOld(sequence) => self.why_too_old(sequence),
            FreshReason::OutputSent(sequence) => output_sent(sequence.get(), &self.why_behind()),
            FreshReason::Told(sequence) => told(sequence.get()),
            FreshReason::ChangedSince(sequence) => changed_since(sequence.get()),
            FreshReason::EachDied => EACH_DIED.to_owned(),
            _ => self.why_none_exact(),
        });
        let seq = sequence.filter(|sequence| *sequence != BEGINNING).map(Sequence::get);
        self.voice.record.facts.death_now = Some(DeathNow { brings, seq, taken, why });
    }

    /// Reports once that the newest checkpoint with file rollback is too old, and once that it is not any more.
    fn note_too_old(&mut self, why: Option<FreshReason>, survey: &Survey) {
        let too_old = match why {
            Some(FreshReason::TooOld(sequence)) => Some(sequence),
            _ => None,
        };
        match (too_old, std::mem::replace(&mut self.files.is_too_old, too_old.is_some())) {
            (Some(sequence), false) => {
                let (age_us, reason) = (self.age_us(sequence), self.why_behind());
                self.report(RunEvent::FilesTooOld { seq: sequence.get(), age_us, reason });
            }
            (None, true) if !survey.exact.is_empty() => {
                let seq = survey.exact.last().copied().unwrap_or_default().get();
                self.report(RunEvent::FilesExactAgain { seq });
            }
            _ => {}
        }
    }

    pub(super) fn why_too_old(&self, sequence: Sequence) -> String {
        too_old(sequence.get(), self.age_us(sequence), &self.why_behind())
    }

    fn age_us(&self, sequence: Sequence) -> u64 {
        let now = self.rebuild.host.clock.now();
        self.driver.machine.work_since(sequence, now).map(time::microseconds).unwrap_or_default()
    }

    /// Returns why there is no newer checkpoint to which files can be rolled back.
    pub(super) fn why_behind(&self) -> String {
        let failing = || self.voice.record.failing.as_ref().map(|failing| failing.reason.clone());
        self.files.deferred_now.clone().or_else(failing).unwrap_or_else(|| self.why_late())
    }

    /// Returns why no checkpoint was committed.
    fn why_late(&self) -> String {
        let reason = match self.driver.machine.state() {
            State::Held => "the program holds checkpoints back",
            State::Checkpointing { .. } => match unstoppable_in(self.root()) {
                Some(reason) => return reason,
                None => "a checkpoint is still being copied",
            },
            _ if self.driver.machine.in_flight().len() > 0 => "the store is still writing a checkpoint",
            _ => "no later checkpoint was committed",
        };
        reason.to_owned()
    }

    /// Returns the time at which a warning is due if no checkpoint was committed until then. `None` if no commit is
    /// expected, or the operator already knows why no checkpoint is taken.
    fn late_from(&self) -> Option<Instant> {
        let every = self.request.every.filter(|_| !self.request.once && !self.request.dry_run_tracking)?;
        let machine = &self.driver.machine;
        let is_expected = machine.is_ready() && !self.refusals.is_reported;
        let interval = machine.pace().longer_interval().unwrap_or(every);
        let limit =
            interval.saturating_mul(LATE_INTERVALS).max(LATE_MIN).max(self.refusals.late_reported * 2);
        // A single expensive checkpoint defers the next one before the interval counts as longer.
        let since =
            self.refusals.on_time.max(machine.pace().deferred_until().unwrap_or(self.refusals.on_time));
        is_expected.then(|| since + limit)
    }

    fn report_late(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.refusals.on_time);
        self.refusals.late_reported = age;
        let (age_us, reason) = (time::microseconds(age), self.why_late());
        let since = self.rebuild.host.clock.wall().checked_sub(age).map(time::rfc3339).unwrap_or_default();
        self.voice.record.facts.late = Some(LateReport { reason: reason.clone(), since });
        self.report(RunEvent::CheckpointsLate { age_us, reason });
        self.voice.journal.set(&self.voice.record);
    }

    /// Records that a checkpoint was committed.
    pub(super) fn note_on_time(&mut self, sequence: Sequence) {
        self.refusals.on_time = self.rebuild.host.clock.now();
        if self.voice.record.facts.late.take().is_some() {
            self.report(RunEvent::CheckpointsOnTime { seq: sequence.get() });
        }
    }
}
