//! The status of a subject, in a file beside its images, so that `status` needs no guardian to read it.
//!
//! Owns: `status.json`: its form, and how a stale one is recognised.
//! Invariants: a reader never sees a partial file, and a failed write leaves none. A file that another user could have
//! written is not read.
//! Does not: survive a power cut in its newest version; a restore needs nothing of it.

use std::io::{Read, Write};
use std::path::Path;

use engine::Slices;
use model::{Pid, ProcessKey, StartTime};
use serde::{Deserialize, Serialize};
use store::trust;
use supervise::{End, RestartPolicy, State};
use sys::Error;
use tracee::procfs;

use crate::error::{GuardianError, Result};
use crate::files::FilesReport;
use crate::time;

const FILE: &str = "status.json";
/// Bytes of it that are read at most: a thousand times what a status takes.
const BYTES_MAX: u64 = 4 << 20;

/// A process by its lasting name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProcessName {
    pub(crate) pid: i32,
    pub(crate) start: u64,
}

/// What a subject is doing, and whether anything guards it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubjectState {
    /// It runs and is guarded.
    #[default]
    Running,
    /// It has died, and its restart waits.
    BackingOff,
    /// It has died, and is being brought back.
    Restoring,
    /// It has ended, and is not restarted.
    Ended,
    /// It has died more often than is allowed.
    GaveUp,
    /// It has died, and could not be brought back.
    Failed,
    /// Its guardian has ended; the subject runs.
    Unprotected,
    /// Its guardian has ended, and the subject too.
    Dead,
}

impl SubjectState {
    /// Whether there is a guardian that restarts it, should it die now.
    #[must_use]
    pub const fn is_watched(self) -> bool {
        matches!(self, Self::Running | Self::Restoring | Self::BackingOff)
    }

    /// Whether it has ended, and will not be restored.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Ended | Self::GaveUp | Self::Failed | Self::Dead)
    }
}

impl From<State> for SubjectState {
    fn from(state: State) -> Self {
        match state {
            State::Running | State::Checkpointing { .. } | State::Held | State::Dying(_) => Self::Running,
            State::BackingOff(..) => Self::BackingOff,
            State::Starting { .. } | State::Restoring { .. } => Self::Restoring,
            State::Ended(End::Over(_)) => Self::Ended,
            State::Ended(End::GaveUp(_)) => Self::GaveUp,
            State::Ended(End::Failed(_)) => Self::Failed,
            State::Ended(End::Left) => Self::Unprotected,
        }
    }
}

impl std::fmt::Display for SubjectState {
    /// The name that is serialised.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// How an incarnation has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct Death {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exit: Option<i32>,
    pub time: String,
}

/// Percentiles of pauses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct PauseMicroseconds {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

/// Stops of one checkpoint before its last one, which keep each stop within the pause budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct SlicesReport {
    pub count: u32,
    pub total_us: u64,
    pub longest_us: u64,
}

impl SlicesReport {
    pub(crate) fn of(slices: Slices) -> Self {
        let Slices { count, total, longest } = slices;
        Self { count, total_us: time::microseconds(total), longest_us: time::microseconds(longest) }
    }
}

/// Checkpoints that were compared with the subject, page by page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct VerifiedReport {
    pub checkpoints: u64,
    pub pages: u64,
    pub differences: u64,
}

/// Why checkpoints were not taken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusalReport {
    /// The reason, as it was first reported; numbers in later ones can differ.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// Why a restart began the program anew although there were checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct FreshReport {
    pub reason: String,
    pub time: String,
}

/// Since when no checkpoint could be taken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Failing {
    pub(crate) reason: String,
    pub(crate) since: String,
}

/// The facts of a guardian about its subject, which `status` shows unchanged.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct SubjectFacts {
    pub name: String,
    pub policy: RestartPolicy,
    /// Which of its incarnations this is, from 1.
    pub incarnation: u64,
    pub restarts: u64,
    pub last_death: Option<Death>,
    /// Checkpoints that this guardian has committed.
    pub checkpoints: u64,
    /// Checkpoints that were taken and are being written.
    #[serde(default)]
    pub in_flight: usize,
    /// Requested checkpoints per second.
    pub requested_hz: f64,
    /// Checkpoints taken per second, of late.
    pub achieved_hz: f64,
    /// How long it was stopped for them.
    pub pause_us: PauseMicroseconds,
    /// The pause budget: the longest that one stop should last.
    #[serde(default)]
    pub max_pause_us: Option<u64>,
    /// Stops of its last checkpoint before the one that completed it.
    #[serde(default)]
    pub slices: SlicesReport,
    /// What comparisons with the subject have found.
    #[serde(default)]
    pub verified: VerifiedReport,
    /// Its TCP connections to the outside.
    #[serde(default)]
    pub connections: ConnectionsReport,
    /// How dirty pages are found.
    #[serde(default)]
    pub tracker: String,
    /// Files that it writes, and what a restart does when they have changed.
    #[serde(default)]
    pub files: FilesReport,
    /// Why the last restart began the program anew although there were checkpoints.
    #[serde(default)]
    pub fresh: Option<FreshReport>,
    /// Checkpoints that were taken late, by reason.
    #[serde(default)]
    pub held_back: Vec<RefusalReport>,
    /// Checkpoints that were not taken, by reason.
    pub refusals: Vec<RefusalReport>,
}

/// TCP connections of a subject to the outside, and what became of those that it had at its deaths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ConnectionsReport {
    /// Nothing passed through them between the last two checkpoints: as long as that holds they stay open over a death.
    pub idle: usize,
    /// So many have stayed open since the guardian began.
    pub kept: u64,
    /// The number that has ended with the program, of those in its checkpoint.
    pub ended: u64,
    /// Their output is held until a checkpoint contains it: they go back with the program (level L3).
    #[serde(default)]
    pub held: usize,
    /// So many have gone back to a checkpoint since the guardian began.
    #[serde(default)]
    pub rewound: u64,
}

/// The content of the file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(flatten)]
    pub(crate) facts: SubjectFacts,
    pub(crate) boot: String,
    pub(crate) guardian: ProcessName,
    pub(crate) root: ProcessName,
    pub(crate) state: SubjectState,
    /// The name of the guardian's socket for requests.
    #[serde(default)]
    pub(crate) requests: String,
    pub(crate) last_checkpoint: Option<String>,
    /// The first checkpoint that is one of this program's; older ones in the store are of others.
    pub(crate) first_sequence: u64,
    /// What the log takes on the disk, since its first commit.
    #[serde(default)]
    pub(crate) store_bytes: Option<u64>,
    /// Set while checkpoints fail.
    #[serde(default)]
    pub(crate) failing: Option<Failing>,
}

impl Record {
    /// Reads the file in a subject's directory; `None` when there is none.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE);
        let file = match trust::open_file(&path) {
            Ok(file) => file,
            Err(error) if trust::is_absence(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        trust::check_directory(directory)?;
        let mut text = Vec::new();
        let read = file.take(BYTES_MAX).read_to_end(&mut text);
        read.map_err(|error| Error::path("read", &path, error))?;
        let record = serde_json::from_slice(&text);
        record.map(Some).map_err(|error| GuardianError::Status { path, why: error.to_string() })
    }

    /// Writes it to the file in a subject's directory.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        replace_json(&directory.join(FILE), &directory.join(format!(".{FILE}.new")), self)
    }

    /// Whether the guardian that wrote it is still there.
    pub(crate) fn is_guarded(&self) -> bool {
        self.is_of_this_boot() && self.guardian.is_alive()
    }

    /// Whether the root process it names is still there.
    pub(crate) fn has_root(&self) -> bool {
        self.is_of_this_boot() && self.root.is_alive()
    }

    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.boot == boot()
    }
}

impl ProcessName {
    pub(crate) fn of(key: ProcessKey) -> Self {
        Self { pid: key.pid.get(), start: key.start.get() }
    }

    pub(crate) fn key(self) -> ProcessKey {
        ProcessKey { pid: Pid(self.pid), start: StartTime(self.start) }
    }

    pub(crate) fn is_alive(self) -> bool {
        procfs::stat(Pid(self.pid)).is_ok_and(|stat| stat.key() == self.key() && !stat.is_zombie())
    }
}

/// A number that is different for every boot; empty where the kernel has none.
pub(crate) fn boot() -> String {
    let text = procfs::read_text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Replaces a file with the JSON of a value, by way of a temporary file in the same directory.
pub(crate) fn replace_json(path: &Path, temporary: &Path, value: &impl Serialize) -> Result<()> {
    let failed = |error: std::io::Error| Error::path("write", path, error);
    let text = serde_json::to_vec_pretty(value).map_err(|error| failed(error.into()))?;
    let mut file = trust::open_or_create(temporary, trust::Access::Write)?;
    let written = file.set_len(0).and_then(|()| file.write_all(&text));
    written.and_then(|()| std::fs::rename(temporary, path)).map_err(|error| {
        // The first error is reported.
        let _ = std::fs::remove_file(temporary);
        failed(error).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_and_a_dead_guardian_is_noticed() {
        let directory = std::env::temp_dir().join(format!("undying-record-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&directory, own).unwrap();
        assert_eq!(Record::read(&directory).unwrap(), None);
        let own = procfs::key(Pid(std::process::id() as i32)).unwrap();
        let mut record = Record {
            facts: SubjectFacts { name: "job".to_owned(), requested_hz: 2.0, ..SubjectFacts::default() },
            boot: boot(),
            guardian: ProcessName::of(own),
            root: ProcessName { start: 1, ..ProcessName::of(own) },
            ..Record::default()
        };
        record.write(&directory).unwrap();
        assert_eq!(Record::read(&directory).unwrap().as_ref(), Some(&record));
        assert!(record.is_guarded() && !record.has_root());
        record.boot = "another".to_owned();
        assert!(!record.is_guarded());
        std::fs::write(directory.join(FILE), "{").unwrap();
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(directory.join(FILE), own).unwrap();
        assert!(matches!(Record::read(&directory), Err(GuardianError::Status { .. })));
        std::fs::remove_file(directory.join(FILE)).unwrap();
        std::fs::create_dir(directory.join(FILE)).unwrap();
        assert!(record.write(&directory).is_err(), "a directory is in the way");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "a half file is left");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
