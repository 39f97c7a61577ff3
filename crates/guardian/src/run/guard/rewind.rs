//! Taking files back with the memory of a subject.
//!
//! Owns: taking files back, what is told of the files of a subject, messages that wait.
//! Invariants: nothing is written to standard error between the end of the subject and the
//! end of going back if that is a file, which may be one of those that go back.
//! Does not: know how files go back.

use engine::{Boundary, Covered, FilePolicy, FileRecord, Files};
use model::Sequence;
use undo::back::WentBack;

use super::super::ChangedFiles;
use super::super::watching::{BEGINNING, Watching};
use super::Guard;
use crate::aside::Parts;
use crate::error::Result;
use crate::event::RunEvent;
use crate::files::FilesReport;
use crate::streams;

/// Why the program starts from its beginning although it had checkpoints.
const NONE_EXACT: &str = "there is no checkpoint that its files can go back to";

impl Guard<'_> {
    pub(super) fn why_none_exact(&self) -> String {
        let last = self.files.watching.as_ref().and_then(|watching| watching.report().last_break);
        last.map_or_else(|| NONE_EXACT.to_owned(), |why| format!("{NONE_EXACT}: {why}"))
    }

    /// Takes files back, if they are watched; the restore compares those that did not go.
    pub(super) fn take_files_back(&mut self, to: Sequence) -> Result<Covered> {
        let Some(watching) = &self.files.watching else { return Ok(Covered::Nothing) };
        let leave = streams::written_by_others(&self.host.streams.written_files());
        if to != BEGINNING {
            self.compare_uncovered(to)?;
        }
        let (went, covered) = watching.go_back(to, &leave)?;
        self.report_went_back(to, &went, &leave);
        Ok(covered)
    }

    fn report_went_back(&mut self, to: Sequence, went: &WentBack, leave: &[(u64, u64)]) {
        self.report(RunEvent::went_back(to, went, leave.len()));
    }

    /// Refuses before any file goes back when a file that cannot has changed.
    fn compare_uncovered(&self, sequence: Sequence) -> Result<()> {
        let uncovered =
            self.files.watching.as_ref().map(|watching| watching.report().uncovered).unwrap_or_default();
        let named = uncovered.iter().filter_map(|path| rustix::fs::stat(path).ok());
        let named: std::collections::HashSet<(u64, u64)> =
            named.map(|stat| (stat.st_dev, stat.st_ino)).collect();
        if named.is_empty() {
            return Ok(());
        }
        let reader = self.store.read(&self.store.get(&self.claim.name, sequence)?)?;
        let parts = Parts::of_subject(&self.claim.directory);
        Ok(engine::compare_files(reader, self.files_at_restore(sequence, &parts, Covered::AllBut(named)))?)
    }

    /// What the restore does with files.
    pub(super) fn files_at_restore(&self, sequence: Sequence, parts: &Parts, covered: Covered) -> Files {
        Files {
            policy: at_restore(self.files.policy),
            aside: Some(parts.keeper()),
            opened_later: self.files.written.later_than(sequence),
            covered,
        }
    }

    /// Every process of the tree has ended.
    pub(super) fn files_ended(&self) {
        if let Some(watching) = &self.files.watching {
            watching.ended();
        }
    }

    /// The program starts with the files as they are.
    pub(super) fn files_start_over(&self) -> Result<()> {
        self.files.watching.as_ref().map_or(Ok(()), |watching| watching.start_over())
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

    /// Has the store keep the newest checkpoints that files can go back to, those that are being written included.
    pub(super) fn hold_exact(&mut self) {
        let (Some(watching), Some(log)) = (&self.files.watching, self.taking.tracer.log()) else { return };
        let mut taken = log.status().kept;
        taken.extend(self.driver.machine.in_flight());
        taken.dedup();
        log.hold(&watching.held(&taken));
    }

    /// Forgets the way back to checkpoints that the store has dropped.
    pub(super) fn retain_files(&self, kept: &[Sequence]) {
        if let Some(watching) = &self.files.watching {
            watching.retain(kept);
        }
    }

    /// Tells that the way back was lost, also if it begins anew at the very boundary that has found this. Each reason is
    /// told once.
    fn note_break(&mut self) {
        let Some(report) = self.files.watching.as_ref().map(Watching::report) else { return };
        if let Some(why) = report.last_break.as_deref().filter(|why| self.files.breaks.note(why)) {
            self.voice.told.is_broken = true;
            self.report(RunEvent::FilesBroken { reason: why.to_owned() });
        }
    }

    /// Puts what the watch knows into the status.
    fn note_watch(&mut self) {
        self.note_break();
        let Some(watching) = &self.files.watching else { return };
        let report = watching.report();
        self.voice.record.files.note_watch(&report);
    }

    /// The report on the files of a checkpoint. Where files go back, it names only those that do not.
    pub(super) fn files_report(&self, files: &[FileRecord]) -> FilesReport {
        let mut report = match &self.files.watching {
            None => FilesReport::of(self.files.policy.name(), files),
            Some(watching) => {
                let uncovered = watching.report().uncovered;
                let compared: Vec<FileRecord> =
                    files.iter().filter(|file| uncovered.contains(&file.path())).cloned().collect();
                FilesReport::of(ChangedFiles::Rewind.name(), &compared)
            }
        };
        report.keep_watch_of(&self.voice.record.files);
        report
    }

    /// From now on messages wait if they may go to a file that goes back.
    pub(super) fn hold_messages(&mut self) {
        if self.files.watching.is_some() && streams::says_into_file() {
            self.voice.waiting = Some(Vec::new());
        }
    }

    /// Tells what has waited.
    pub(super) fn release_messages(&mut self) {
        for event in self.voice.waiting.take().unwrap_or_default() {
            (self.voice.tell)(&event);
        }
    }

    /// Tells the operator, now or when messages need not wait any more.
    pub(super) fn say(&mut self, event: RunEvent) {
        match &mut self.voice.waiting {
            Some(waiting) => waiting.push(event),
            None => (self.voice.tell)(&event),
        }
    }
}

/// What the restore does with files; after files went back, with those that did not.
const fn at_restore(files: ChangedFiles) -> FilePolicy {
    match files {
        ChangedFiles::Rewind | ChangedFiles::Fresh | ChangedFiles::Refuse => FilePolicy::Compare,
        ChangedFiles::Keep => FilePolicy::Keep,
    }
}
