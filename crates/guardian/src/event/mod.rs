//! What happens to a subject while it is guarded.
//!
//! Owns: the one type of an event, its shape in the journal.
//! Invariants: names of events and keys are a contract: adding is free, changing is not.
//! Does not: print, write, or word an event; `wording` does the last.

mod phases;
pub(crate) mod wording;

use engine::Comparison;
use model::{Escaped, Pid, Sequence};
use serde::{Deserialize, Serialize};
use supervise::SubjectStatus;
use undo::back::WentBack;

use crate::aside::MovedPart;
use crate::record::SlicesReport;

pub use self::phases::PhaseTimes;

/// Files that an event names.
const NAMED_MAX: usize = 3;

/// What has happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the keys of the contract")]
pub enum RunEvent {
    /// The program was started, at first or again from its beginning.
    Started {
        pid: i32,
        /// Why no checkpoint was used, if there were any.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        why: Option<String>,
    },
    /// The restart waits, since the program has hardly lived.
    BackOff { wait_us: u64 },
    /// The end of a file that only grew was cut off at a restore.
    MovedAside { path: String, bytes: u64, to: String },
    /// Files that prevent a restart once they have changed, and files that prevent every restart.
    FilesInPlace { in_place: Vec<String>, unknown: Vec<String> },
    /// Files of this run do not go back with the program.
    FilesCompared { reason: String },
    /// Files were taken back; `seq` 0 is the beginning of the program.
    FilesWentBack {
        seq: u64,
        changed: usize,
        aside: usize,
        /// The first of them.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        aside_paths: Vec<String>,
        uncovered: usize,
        /// Standard streams that stayed, since other programs write to their files.
        left: usize,
    },
    /// Files cannot go back to this checkpoint.
    FilesDeferred { seq: u64, reason: String },
    /// The way back of files is lost.
    FilesBroken { reason: String },
    /// Files can go back again.
    FilesExactAgain { seq: u64 },
    /// A running program is guarded from now on, under this name.
    Adopted {
        pid: i32,
        #[serde(default)]
        subject: String,
    },
    /// A checkpoint was committed.
    Checkpoint(CheckpointEvent),
    /// Dirty pages were looked for, and no checkpoint was taken.
    Scan { pages: u64, scan_us: u64, pause_us: u64, arming_us: u64 },
    /// A checkpoint was compared with the subject, page by page.
    Verified {
        seq: u64,
        pages: u64,
        differences: u64,
        /// The first of them.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        examples: Vec<String>,
    },
    /// Checkpoints are not taken, for a reason that was not told yet.
    Refused { reason: String },
    /// The status cannot be written; `status` knows less. Reported to the operator only.
    StatusUnwritable { reason: String },
    /// They can be taken again.
    Resumed { seq: u64 },
    /// A checkpoint was still being written when the subject died, and is left behind.
    Dropped { seq: u64 },
    /// A process has held checkpoints back for too long.
    HoldEnded { pid: i32 },
    /// Another tracker is used.
    Tracker { tracker: String, reason: String },
    /// The subject died.
    Died { pid: i32, signal: Option<i32>, exit: Option<i32> },
    /// A process that is not the root has failed, and the root is ended for it.
    ChildDied {
        pid: i32,
        signal: i32,
        /// It is not the first one in this run.
        #[serde(default)]
        again: bool,
    },
    /// The kernel could not tell all starts and deaths of processes.
    ChildrenUnseen,
    /// A process has left the tree of the subject, as a daemon does when its parent ends, and is in no checkpoint.
    Departed {
        pid: i32,
        program: String,
        /// The run ends.
        #[serde(default)]
        is_end: bool,
    },
    /// A checkpoint leads to death again and is passed over.
    Poisoned { seq: u64 },
    /// A checkpoint could not be restored.
    RestoreFailed { seq: u64, reason: String },
    /// The subject runs again.
    Restored { pid: i32, seq: u64, took_us: u64 },
    /// Too many restarts.
    GaveUp { restarts: usize, within_us: u64 },
    /// The subject has ended for good.
    Ended { pid: i32, signal: Option<i32>, exit: Option<i32> },
}

/// A checkpoint with the time that each phase took.
///
/// The pause `pause_us` is the sum of the phases from `stop_us` to `resume_us`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct CheckpointEvent {
    pub seq: u64,
    pub full: bool,
    /// An earlier pause, in which trackers were attached to new processes.
    pub arming_us: u64,
    pub pause_us: u64,
    /// The pause budget.
    #[serde(default)]
    pub max_pause_us: Option<u64>,
    /// Earlier stops of this checkpoint, each within the budget.
    #[serde(default)]
    pub slices: SlicesReport,
    #[serde(flatten)]
    pub phases: PhaseTimes,
    pub hash_us: u64,
    pub write_us: u64,
    /// From the end of the pause until it was durable.
    pub commit_us: u64,
    /// Pages that the scan inside the pause went over.
    pub scanned_pages: u64,
    /// Rounds of pre-copy.
    pub rounds: usize,
    /// Pages copied before the pause; a page that was dirtied again counts again.
    pub precopied_pages: u64,
    /// Pages copied inside the pause.
    pub residual_pages: u64,
    /// Pages of the subject.
    pub pages: u64,
    /// Bytes written for it.
    pub bytes: u64,
    /// Of these, pages that were moved to keep the log short.
    pub moved_pages: u64,
}

impl RunEvent {
    pub(crate) fn died(pid: Pid, status: SubjectStatus) -> Self {
        Self::Died { pid: pid.get(), signal: status.signal(), exit: status.exit() }
    }

    pub(crate) fn ended(pid: Pid, status: SubjectStatus) -> Self {
        Self::Ended { pid: pid.get(), signal: status.signal(), exit: status.exit() }
    }

    pub(crate) fn moved_aside(part: &MovedPart) -> Self {
        let (path, to) = (part.path.display().to_string(), part.to.display().to_string());
        Self::MovedAside { path, bytes: part.bytes, to }
    }

    /// `left` standard streams stayed as they were.
    pub(crate) fn went_back(to: Sequence, went: &WentBack, left: usize) -> Self {
        Self::FilesWentBack {
            seq: to.get(),
            changed: went.changed,
            aside: went.aside.len(),
            aside_paths: went
                .aside
                .iter()
                .take(NAMED_MAX)
                .map(|one| one.path.display().to_string())
                .collect(),
            uncovered: went.uncovered.len(),
            left,
        }
    }

    pub(crate) fn verified(sequence: Sequence, found: &Comparison) -> Self {
        let example = |one: &engine::Difference| {
            let pid = one.pid.map_or("a shared object".to_owned(), |pid| format!("pid {pid}"));
            format!("{pid} at {} ({}), {} in the image", one.address, Escaped(&one.area), one.image)
        };
        Self::Verified {
            seq: sequence.get(),
            pages: found.pages.get(),
            differences: found.differences.get(),
            examples: found.first.iter().map(example).collect(),
        }
    }

    /// Whether it happens at each checkpoint.
    pub(crate) fn is_frequent(&self) -> bool {
        matches!(self, Self::Checkpoint(_) | Self::Scan { .. } | Self::Verified { .. })
    }
}
