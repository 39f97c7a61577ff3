//! The files of a subject while it is guarded.
//!
//! Owns: reports about them, which checkpoints the store keeps for them, deferred messages.
//! Invariants: between the end of the subject and the end of going back, nothing is written to standard error if that
//! is a file, because this file may go back as well.
//! Does not: take files back; `rebuild` does.

use engine::{Boundary, FileRecord};
use model::Sequence;
use supervise::{ChangedFiles, State};

use super::parts::Guard;
use crate::event::RunEvent;
use crate::files::FilesReport;
use crate::streams;

/// Why the program starts from its beginning although it had checkpoints.
const NONE_EXACT: &str = "there is no checkpoint that its files can go back to";

impl Guard {
    pub(super) fn why_none_exact(&self) -> String {
        let last = self.rebuild.watching.as_ref().and_then(|watching| watching.watch.report().last_break);
        last.map_or_else(|| NONE_EXACT.to_owned(), |why| format!("{NONE_EXACT}: {why}"))
    }

    /// Takes note of the files that a checkpoint has recorded; the first that knows some reports those that can
    /// prevent a restart.
    pub(super) fn note_files(&mut self, sequence: Sequence, files: &[FileRecord]) {
        self.files.written.note(sequence, files);
        let policy = self.rebuild.policy;
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

    /// Takes note of whether files can go back to a checkpoint that was just taken.
    pub(super) fn note_boundary(&mut self, sequence: Sequence, boundary: Option<&Boundary>) {
        match boundary {
            None => return,
            Some(Boundary::Exact) => {
                self.note_break();
                if std::mem::take(&mut self.voice.told.is_broken) {
                    self.report(RunEvent::FilesExactAgain { seq: sequence.get() });
                }
            }
            Some(Boundary::Deferred(why)) => {
                if self.files.deferred.note(why) {
                    self.report(RunEvent::FilesDeferred { seq: sequence.get(), reason: why.clone() });
                }
            }
        }
        self.hold_exact();
        self.note_watch();
    }

    /// Makes the store keep the newest checkpoints that files can go back to, including those in flight.
    pub(super) fn hold_exact(&mut self) {
        let (Some(watching), Some(log)) = (&self.rebuild.watching, self.taking.tracer.log()) else { return };
        let mut taken = log.status().kept;
        taken.extend(self.driver.machine.in_flight());
        taken.dedup();
        log.hold(&watching.held(&taken));
    }

    /// Tells that the way back was lost, also if it begins anew at the very boundary that has found this. Each reason is
    /// told once.
    fn note_break(&mut self) {
        let Some(report) = self.rebuild.watching.as_ref().map(|watching| watching.watch.report()) else {
            return;
        };
        if let Some(why) = report.last_break.as_deref().filter(|why| self.files.breaks.note(why)) {
            self.voice.told.is_broken = true;
            self.report(RunEvent::FilesBroken { reason: why.to_owned() });
        }
    }

    /// Copies the state of the watch to the status.
    fn note_watch(&mut self) {
        self.note_break();
        let Some(watching) = &self.rebuild.watching else { return };
        let report = watching.watch.report();
        self.voice.record.facts.files.note_watch(&report);
    }

    /// The report on the files of a checkpoint. Where files go back, it names only the exceptions.
    pub(super) fn files_report(&self, files: &[FileRecord]) -> FilesReport {
        let mut report = match &self.rebuild.watching {
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

    /// From now on messages wait if they may go to a file that goes back.
    pub(super) fn hold_messages(&mut self) {
        self.voice.is_holding = self.rebuild.watching.is_some() && streams::says_into_file();
    }

    /// Writes the deferred messages, if the subject runs again or never will.
    pub(super) fn release_messages(&mut self) {
        let state = self.driver.machine.state();
        let is_alive = state.is_alive() && self.tree.death.is_none();
        self.voice.is_holding &= !is_alive && !matches!(state, State::Ended(_));
    }
}
