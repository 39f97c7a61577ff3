//! The files of a guarded subject that are rolled back with the subject.
//!
//! Owns: reports about these files, the checkpoints that the store keeps for a rollback, and deferred messages.
//! Invariants: between the end of the subject and the end of a rollback, nothing is written to standard error if
//! standard error is a file. This file may be rolled back as well.
//! Does not: roll files back; `rebuild` does.

use engine::{Boundary, FileRecord};
use model::Sequence;
use store::LogWriter;
use supervise::{ChangedFiles, DurableParts, Event, State};

use super::parts::Guard;
use crate::event::RunEvent;
use crate::files::FilesReport;
use crate::streams;

/// Why the program starts from its beginning although there were checkpoints.
const NONE_EXACT: &str = "there is no checkpoint to which its files can be rolled back";

impl Guard {
    pub(super) fn why_none_exact(&self) -> String {
        let last = self.rebuild.watching().and_then(|watching| watching.watch.report().last_break);
        last.map_or_else(|| NONE_EXACT.to_owned(), |why| format!("{NONE_EXACT}: {why}"))
    }

    /// Records the files of a checkpoint. The first checkpoint with files that can prevent a restart also reports these
    /// files.
    pub(super) fn note_files(&mut self, sequence: Sequence, files: &[FileRecord]) {
        self.files.written.note(sequence, files);
        let policy = self.rebuild.policy;
        let report = self.files_report(files);
        // The report is made once in a run, and once more when the first file appears that prevents every restart.
        let has_unknown = !report.unknown.is_empty();
        let is_news = !self.voice.reported.files || (has_unknown && !self.voice.reported.unknown_files);
        if is_news && policy != ChangedFiles::Keep && !report.is_empty() {
            self.voice.reported.files = true;
            self.voice.reported.unknown_files |= has_unknown;
            let (in_place, unknown) = (report.in_place.clone(), report.unknown.clone());
            self.report(RunEvent::FilesInPlace { in_place, unknown });
        }
        self.voice.record.facts.files = report;
    }

    /// Records whether files can be rolled back to a checkpoint that was just taken.
    pub(super) fn note_boundary(&mut self, sequence: Sequence, boundary: Option<&Boundary>) {
        match boundary {
            None => return,
            Some(Boundary::Exact) => {
                self.files.deferred_now = None;
                self.note_break();
                if std::mem::take(&mut self.voice.reported.is_broken) {
                    self.report(RunEvent::FilesExactAgain { seq: sequence.get() });
                }
            }
            Some(Boundary::Deferred(why)) => {
                self.files.deferred_now = Some(why.clone());
                self.voice.record.facts.inexact_checkpoints += 1;
                if self.files.deferred.note(why) {
                    self.report(RunEvent::FilesDeferred { seq: sequence.get(), reason: why.clone() });
                }
            }
        }
        supervise::hold_newest(self);
        self.note_watch();
    }

    /// Reports that files can no longer be rolled back to earlier checkpoints. The report is made even if rollback is
    /// possible again from the present checkpoint on. Each reason is reported once.
    fn note_break(&mut self) {
        let Some(report) = self.rebuild.watching().map(|watching| watching.watch.report()) else {
            return;
        };
        if let Some(why) = report.last_break.as_deref().filter(|why| self.files.breaks.note(why)) {
            self.voice.reported.is_broken = true;
            self.report(RunEvent::FilesBroken { reason: why.to_owned() });
        }
    }

    /// Copies the state of the file watch to the status.
    fn note_watch(&mut self) {
        self.note_break();
        let Some(watching) = self.rebuild.watching() else { return };
        let report = watching.watch.report();
        self.voice.record.facts.files.note_watch(&report);
    }

    /// Returns the report on the files of a checkpoint. If files are rolled back, the report names only the exceptions.
    pub(super) fn files_report(&self, files: &[FileRecord]) -> FilesReport {
        let mut report = match self.rebuild.watching() {
            None => FilesReport::of(self.rebuild.policy, files),
            Some(watching) => {
                let uncovered = watching.watch.report().uncovered;
                let compared: Vec<FileRecord> =
                    files.iter().filter(|file| uncovered.contains(&file.path())).cloned().collect();
                FilesReport::of(ChangedFiles::Rewind, &compared)
            }
        };
        report.keep_watch_of(&self.voice.record.facts.files);
        report
    }

    /// Makes messages wait from now on, if they may be written to a file that is rolled back.
    pub(super) fn hold_messages(&mut self) {
        let holds = self.rebuild.watching().is_some() && streams::says_into_file();
        self.voice.outbox.hold(holds);
    }

    /// Releases the waiting messages when the subject runs again, or has ended for good.
    pub(super) fn release_messages(&mut self) {
        let state = self.driver.machine.state();
        let is_ending = self.tree.death.is_some() || self.driver.machine.is_killed() || self.is_stopped();
        let is_alive = state.is_alive() && !is_ending;
        let waits = !is_alive && !matches!(state, State::Ended(_));
        self.voice.outbox.hold(self.voice.outbox.holds && waits);
    }
}

impl DurableParts for Guard {
    fn exact(&self, sequences: &[Sequence]) -> Vec<Sequence> {
        self.rebuild.watching().map_or_else(|| sequences.to_vec(), |watching| watching.exact(sequences))
    }

    fn kept(&self) -> Option<Vec<Sequence>> {
        self.taking.tracer.log().map(|log| log.status().kept)
    }

    fn in_flight(&self) -> Vec<Sequence> {
        self.driver.machine.in_flight().collect()
    }

    fn release(&mut self, sequence: Sequence, is_used: bool) {
        match &mut self.output {
            Some(output) if is_used => output.committed(sequence, self.rebuild.host.clock.now()),
            Some(output) => output.unusable(sequence),
            None => {}
        }
    }

    fn feed(&mut self, event: Event) {
        Self::feed(self, event);
    }

    fn retain(&mut self, exact: &[Sequence]) {
        self.rebuild.watching().into_iter().for_each(|watching| watching.watch.retain(exact));
    }

    fn hold(&mut self, sequences: &[Sequence]) {
        self.taking.tracer.log().into_iter().for_each(|log| LogWriter::hold(log, sequences));
    }
}
