//! Regular files that a subject writes, as `status` and the messages of `run` report them.
//!
//! Owns: the effect of these files on a restart, the wording of this effect, and the last checkpoint that recorded each
//! file.
//! Does not: compare files; `engine` does during a restore.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use engine::{Effect, FileRecord};
use model::Sequence;
use serde::{Deserialize, Serialize};
use supervise::ChangedFiles;
use undo::watch::WatchReport;

use crate::time::microseconds;

/// Maximum number of paths in each list of a status. The status file is written at each checkpoint, so the lists are
/// short.
const LISTED_MAX: usize = 64;
/// Maximum number of paths of each list in a message.
const NAMED_MAX: usize = 5;

/// Regular files that the subject writes, as its newest checkpoint recorded them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FilesReport {
    /// What a restart does if these files have changed.
    pub policy: ChangedFiles,
    /// Why files are not rolled back. `None` if files are rolled back, or if the user chose another policy.
    #[serde(default)]
    pub because: Option<String>,
    /// Why a restart compares only files that were open at the checkpoint. `None` if all changes are noticed, or if the
    /// policy does not compare files.
    #[serde(default)]
    pub unnoticed: Option<String>,
    /// The newest checkpoint to which all files can be rolled back, except the files in `uncovered`.
    #[serde(default)]
    pub exact: Option<u64>,
    /// Why files can no longer be rolled back, since the checkpoint `exact`. `None` if files can be rolled back.
    #[serde(default)]
    pub broken: Option<String>,
    /// Files that can be changed without detection, at most 64. These files are not rolled back; a restore compares
    /// them.
    #[serde(default)]
    pub uncovered: Vec<String>,
    /// Size of the undo log in bytes.
    #[serde(default)]
    pub undo_bytes: u64,
    /// Fraction of the last epoch that was spent on keeping old file contents.
    #[serde(default)]
    pub cost: f64,
    /// Minimum time between two checkpoints with file rollback, in microseconds. The limit on `cost` determines this
    /// time.
    #[serde(default)]
    pub apart_us: u64,
    /// Maximum age of a checkpoint to which changed files are set back, in microseconds.
    #[serde(default)]
    pub back_max_us: u64,
    /// Files that prevent a restart from a checkpoint if they change after the checkpoint; at most 64.
    pub in_place: Vec<String>,
    /// Files that prevent every restart from a checkpoint; 64 at most.
    pub unknown: Vec<String>,
}

impl FilesReport {
    /// Sorts the files of a checkpoint by their effect on a restart.
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

    /// Copies the facts from a report of the file watch.
    pub(crate) fn note_watch(&mut self, report: &WatchReport) {
        let paths = report.uncovered.iter().take(LISTED_MAX);
        self.exact = report.newest_exact.map(Sequence::get);
        self.broken.clone_from(&report.broken);
        self.uncovered = paths.map(|path| path.display().to_string()).collect();
        self.undo_bytes = report.bytes.get();
        self.cost = report.cost;
        self.apart_us = microseconds(report.apart);
    }

    /// Copies from an earlier report all facts that do not depend on the files of one checkpoint.
    pub(crate) fn keep_watch_of(&mut self, before: &Self) {
        let Self { policy, in_place, unknown, .. } = std::mem::take(self);
        *self = Self { policy, in_place, unknown, ..before.clone() };
    }

    /// Returns why files cannot be rolled back at present, if the policy is rollback.
    #[must_use]
    pub fn lost(&self) -> Option<&str> {
        self.broken.as_deref().filter(|_| self.policy == ChangedFiles::Rewind)
    }

    /// Returns the first file that prevents every restart under the current policy.
    #[must_use]
    pub fn always_prevents(&self) -> Option<&str> {
        self.unknown.first().map(String::as_str).filter(|_| self.policy != ChangedFiles::Keep)
    }

    /// Reports whether no file can prevent a restart.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_place.is_empty() && self.unknown.is_empty()
    }
}

/// The files that checkpoints of this run have recorded, each with its last checkpoint.
#[derive(Debug, Default)]
pub(crate) struct WrittenFiles(BTreeMap<PathBuf, Sequence>);

/// Maximum number of remembered files. Further files are not recorded, so that a fallback to an older checkpoint knows
/// only the remembered files.
const REMEMBERED_MAX: usize = 4096;

impl WrittenFiles {
    pub(crate) fn note(&mut self, sequence: Sequence, files: &[FileRecord]) {
        for file in files.iter().filter(|file| file.effect() != Effect::Stays) {
            if self.0.len() < REMEMBERED_MAX {
                self.0.insert(file.path(), sequence);
            } else if let Some(known) = self.0.get_mut(&file.path()) {
                *known = sequence;
            }
        }
    }

    /// Returns the files that a checkpoint after `sequence` has recorded.
    pub(crate) fn later_than(&self, sequence: Sequence) -> Vec<PathBuf> {
        self.0.iter().filter(|(_, last)| **last > sequence).map(|(path, _)| path.clone()).collect()
    }
}

impl fmt::Display for FilesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.unknown.is_empty() {
            write!(
                f,
                "if the program dies, it starts from its beginning, because these files are mapped and can change without detection: {}",
                named(&self.unknown)
            )?;
        }
        if !self.in_place.is_empty() {
            let and = if self.unknown.is_empty() { "" } else { "; " };
            write!(
                f,
                "{and}if the program dies, no checkpoint is restored after which one of these files has changed: {}",
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
