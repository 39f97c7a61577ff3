//! What a guard tells, put together from what it knows.
//!
//! Owns: the first status, the event of a checkpoint, the words of a refusal.
//! Does not: write any of it down.

use std::time::Duration;

use engine::FileRecord;
use image::ImageKind;
use model::Sequence;
use store::LogCommitted;
use supervise::ChangedFiles;

use super::super::claim::Claim;
use super::super::request::RunRequest;
use super::super::tracer::Tracking;
use super::parts::{Guard, InFlight};
use crate::error::{GuardianError, Result};
use crate::event::{CheckpointEvent, PhaseTimes, RunEvent};
use crate::record::{ProcessName, Record, SlicesReport, SubjectFacts, boot};
use crate::subject::Subject;
use crate::time;

pub(super) fn first_record(
    request: &RunRequest,
    claim: &Claim,
    subject: &Subject,
    first: Sequence,
    tracking: &Tracking,
) -> Result<Record> {
    let own = tracee::procfs::key(model::Pid(std::process::id() as i32))?;
    let facts = SubjectFacts {
        name: claim.name.to_string(),
        policy: request.policy,
        incarnation: 1,
        max_pause_us: request.tuning.max_pause.map(time::microseconds),
        requested_hz: 1.0 / request.every.as_secs_f64(),
        tracker: tracking.kind.name().to_owned(),
        ..SubjectFacts::default()
    };
    let (guardian, root) = (ProcessName::of(own), ProcessName::of(subject.key()));
    Ok(Record { facts, boot: boot(), guardian, root, first_sequence: first.get(), ..Record::default() })
}

impl Guard {
    /// Now, as a status has it.
    pub(super) fn time(&self) -> String {
        time::rfc3339(self.host.clock.wall())
    }

    /// Takes note of the files that a checkpoint has recorded; the first that knows some reports those that can
    /// prevent a restart.
    pub(super) fn note_files(&mut self, sequence: Sequence, files: &[FileRecord]) {
        self.files.written.note(sequence, files);
        let policy = self.files.policy;
        let report = self.files_report(files);
        // Once in a run, and once more when a file has come that prevents every restart.
        let has_unknown = !report.unknown.is_empty();
        let is_news = !self.voice.told.files || (has_unknown && !self.voice.told.unknown_files);
        if is_news && policy != ChangedFiles::Keep && !report.is_empty() {
            self.voice.told.files = true;
            self.voice.told.unknown_files |= has_unknown;
            let (in_place, unknown) = (report.in_place.clone(), report.unknown.clone());
            self.report(RunEvent::FilesInPlace { in_place, unknown });
        }
        self.voice.record.facts.files = report;
    }

    /// Reports the processes that have left the tree since the last call: after a checkpoint, or at the end of the run.
    pub(super) fn report_departed(&mut self, sequence: Sequence, is_end: bool) {
        if !self.tree.departed.is_due(self.host.clock.now()) && !is_end {
            return;
        }
        let listed = self.host.reaper.departed(self.tree.owner, self.subject.pid());
        for key in self.tree.departed.note(sequence, &listed) {
            let program = tracee::procfs::stat(key.pid).map_or_else(|_| String::new(), |stat| stat.comm);
            self.report(RunEvent::Departed { pid: key.pid.get(), program, is_end });
        }
    }
}

/// The answer to one who wanted a checkpoint that was not taken.
pub(super) fn refusal(error: &GuardianError) -> String {
    format!("error {}\n", error.to_string().lines().next().unwrap_or_default())
}

pub(super) fn checkpoint_event(
    committed: &LogCommitted,
    taken: InFlight,
    max_pause: Option<Duration>,
) -> RunEvent {
    let (commit, phases, us) = (&committed.commit, &taken.phases, time::microseconds);
    RunEvent::Checkpoint(CheckpointEvent {
        seq: committed.sequence.get(),
        full: commit.kind == ImageKind::Full,
        arming_us: us(taken.arming),
        pause_us: us(commit.timings.pause),
        max_pause_us: max_pause.map(us),
        slices: SlicesReport::of(taken.slices),
        phases: PhaseTimes::of(phases),
        hash_us: us(committed.timings.hash),
        write_us: us(committed.timings.write),
        commit_us: us(committed.timings.commit),
        scanned_pages: phases.scanned.get(),
        rounds: taken.rounds,
        precopied_pages: taken.precopied.get(),
        residual_pages: taken.residual.get(),
        pages: commit.pages.get(),
        bytes: committed.written.get(),
        moved_pages: committed.moved.get(),
    })
}
