//! Files that a subject writes, as `status` and the messages of `run` name them.
//!
//! Owns: which of them can prevent a restart from a checkpoint, the wording, and which checkpoint recorded a file last.
//! Does not: compare files; `engine` does at a restore.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use engine::{Effect, FileRecord};
use model::Sequence;
use serde::{Deserialize, Serialize};
use supervise::ChangedFiles;
use undo::watch::WatchReport;

use crate::time::microseconds;

/// Paths that a status holds of either kind. The status file is written at each checkpoint, so it stays short.
const LISTED_MAX: usize = 64;
/// Paths that a message names of either kind.
const NAMED_MAX: usize = 5;

/// Regular files that the subject writes, as its newest checkpoint recorded them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FilesReport {
    /// What a restart does when they have changed.
    pub policy: ChangedFiles,
    /// Why files do not go back, unless that was requested.
    #[serde(default)]
    pub because: Option<String>,
    /// The newest checkpoint that all files but those of `uncovered` can go back to.
    #[serde(default)]
    pub exact: Option<u64>,
    /// Why the way back is lost since the last exact checkpoint.
    #[serde(default)]
    pub broken: Option<String>,
    /// Files that can be changed without a trace: they do not go back and are compared; 64 at most.
    #[serde(default)]
    pub uncovered: Vec<String>,
    /// Bytes of the undo log.
    #[serde(default)]
    pub undo_bytes: u64,
    /// Part of the time of the last epoch that keeping files took.
    #[serde(default)]
    pub cost: f64,
    /// The least time between two checkpoints that files can go back to, by the cap on that cost, in microseconds.
    #[serde(default)]
    pub apart_us: u64,
    /// Files that prevent a restart from a checkpoint as soon as they have changed after it; 64 at most.
    pub in_place: Vec<String>,
    /// Files that prevent every restart from a checkpoint; 64 at most.
    pub unknown: Vec<String>,
}

impl FilesReport {
    /// Sorts the files of a checkpoint by what they mean for a restart.
    pub(crate) fn of(policy: ChangedFiles, files: &[FileRecord]) -> Self {
        let with = |effect: Effect| {
            let found = files.iter().filter(|file| file.effect() == effect);
            found.take(LISTED_MAX).map(|file| file.path().display().to_string()).collect()
        };
        Self {
            policy,
            in_place: with(Effect::Prevents),
            unknown: with(Effect::AlwaysPrevents),
            ..Self::default()
        }
    }

    /// Takes over a report of the watch.
    pub(crate) fn note_watch(&mut self, report: &WatchReport) {
        let paths = report.uncovered.iter().take(LISTED_MAX);
        self.exact = report.newest_exact.map(Sequence::get);
        self.broken.clone_from(&report.broken);
        self.uncovered = paths.map(|path| path.display().to_string()).collect();
        self.undo_bytes = report.bytes.get();
        self.cost = report.cost;
        self.apart_us = microseconds(report.apart);
    }

    /// Takes over what does not depend on the files of one checkpoint.
    pub(crate) fn keep_watch_of(&mut self, before: &Self) {
        let Self { policy, in_place, unknown, .. } = std::mem::take(self);
        *self = Self { policy, in_place, unknown, ..before.clone() };
    }

    /// Why its files would not go back if it died now, where they should.
    #[must_use]
    pub fn lost(&self) -> Option<&str> {
        self.broken.as_deref().filter(|_| self.policy == ChangedFiles::Rewind)
    }

    /// A file that prevents every restart under this policy, if there is one.
    #[must_use]
    pub fn always_prevents(&self) -> Option<&str> {
        self.unknown.first().map(String::as_str).filter(|_| self.policy != ChangedFiles::Keep)
    }

    /// Whether no file can prevent a restart.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_place.is_empty() && self.unknown.is_empty()
    }
}

/// Files that checkpoints of this run have recorded.
#[derive(Debug, Default)]
pub(crate) struct WrittenFiles(BTreeMap<PathBuf, Sequence>);

/// Files that are remembered: a program that opens more of them one after the other is followed no further, and a
/// fallback to an older checkpoint then knows less.
const REMEMBERED_MAX: usize = 4096;

impl WrittenFiles {
    /// Takes note of the files of a checkpoint.
    pub(crate) fn note(&mut self, sequence: Sequence, files: &[FileRecord]) {
        for file in files.iter().filter(|file| file.effect() != Effect::Stays) {
            if self.0.len() < REMEMBERED_MAX {
                self.0.insert(file.path(), sequence);
            } else if let Some(known) = self.0.get_mut(&file.path()) {
                *known = sequence;
            }
        }
    }

    /// Files that some later checkpoint has recorded.
    pub(crate) fn later_than(&self, sequence: Sequence) -> Vec<PathBuf> {
        self.0.iter().filter(|(_, last)| **last > sequence).map(|(path, _)| path.clone()).collect()
    }
}

impl fmt::Display for FilesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.unknown.is_empty() {
            write!(
                f,
                "if it dies, it starts from its beginning, since these are mapped and can be written to unnoticed: {}",
                named(&self.unknown)
            )?;
        }
        if !self.in_place.is_empty() {
            let and = if self.unknown.is_empty() { "" } else { "; " };
            write!(
                f,
                "{and}if it dies, it starts from its beginning once one of these has changed after the checkpoint: {}",
                named(&self.in_place)
            )?;
        }
        Ok(())
    }
}

fn named(paths: &[String]) -> String {
    let mut text = paths.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    if paths.len() > NAMED_MAX {
        text.push_str(&format!(" and {} more", paths.len() - NAMED_MAX));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_watch_says_outlives_the_files_of_a_checkpoint() {
        let mut report = FilesReport { policy: ChangedFiles::Rewind, ..FilesReport::default() };
        let watch = WatchReport {
            broken: Some("full".to_owned()),
            uncovered: vec![PathBuf::from("/mnt/nfs/file")],
            newest_exact: Some(Sequence(7)),
            apart: std::time::Duration::from_micros(3),
            ..WatchReport::default()
        };
        report.note_watch(&watch);
        let mut next = FilesReport {
            in_place: vec!["/mnt/nfs/file".to_owned()],
            ..FilesReport::of(ChangedFiles::Rewind, &[])
        };
        next.keep_watch_of(&report);
        assert_eq!((next.exact, next.apart_us, next.lost()), (Some(7), 3, Some("full")));
        assert_eq!((next.in_place.len(), next.uncovered.len()), (1, 1));
        next.policy = ChangedFiles::Fresh;
        assert_eq!(next.lost(), None);
    }

    #[test]
    fn few_files_are_named_and_the_rest_is_counted() {
        let paths: Vec<String> = (1..=7).map(|number| format!("/data/{number}")).collect();
        let report = FilesReport { in_place: paths, ..FilesReport::default() };
        let text = report.to_string();
        assert!(text.ends_with("/data/1, /data/2, /data/3, /data/4, /data/5 and 2 more"), "{text}");
        assert!(!report.is_empty() && FilesReport::of(ChangedFiles::Fresh, &[]).is_empty());
    }
}
