//! The file `status.json` beside the checkpoints of a subject contains the status of the subject.
//!
//! The guardian writes the file, and the command `status` reads the file. Therefore `status` works even after the
//! guardian has ended.
//!
//! Owns: the form of `status.json`, and the test whether the file is stale.
//! Invariants: a reader never sees a partial file, and a failed write leaves no partial file. A file that another user
//! could have written is not read.
//! Does not: guarantee that the newest version survives a power cut. A restore does not need this file.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use engine::Slices;
use model::{Pid, ProcessKey, StartTime};
use serde::{Deserialize, Serialize};
use store::trust;
use sys::Error;
use sys::clock::boot_id;
use tracee::procfs;

use crate::error::{GuardianError, Result};
use crate::files::FilesReport;
use crate::mark;
use crate::started_as::StartedAs;
use crate::subject_state::SubjectState;
use crate::time;

const FILE: &str = "status.json";

const OUTDATED_MODE: u32 = 0o400;
/// Maximum number of bytes that are read. A usual status is a thousand times smaller.
const BYTES_MAX: u64 = 4 << 20;

/// A process, named by its pid and its start time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessName {
    /// The pid.
    pub pid: i32,
    /// The start time, in clock ticks since the boot.
    pub start: u64,
}

/// The end of an incarnation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct Death {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exit: Option<i32>,
    pub time: String,
}

/// Percentiles and maximum of the pauses, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct PauseMicroseconds {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

/// The slices of one checkpoint. A slice is a short stop before the final stop. Pages are copied in slices, so that no
/// stop exceeds the pause budget.
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

/// The sums over all comparisons of a checkpoint with the subject, page by page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct VerifiedReport {
    pub checkpoints: u64,
    pub pages: u64,
    pub differences: u64,
}

/// A reason why checkpoints were not taken, or were taken late.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusalReport {
    /// The reason, with the numbers of its first report. Two reasons that differ only in numbers count as the same
    /// reason.
    pub reason: String,
    /// Number of checkpoints with this reason.
    pub count: u64,
}

/// Why a restart started the program from its beginning although there were checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct FreshReport {
    pub reason: String,
    pub time: String,
}

/// The hold of a subject that an operator has stopped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldReport {
    /// The checkpoint that contains the stopped state.
    pub seq: u64,
    /// When the hold ends at the latest, in RFC 3339.
    pub until: String,
}

/// A period in which no checkpoint was committed, although several were due.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct LateReport {
    pub reason: String,
    pub since: String,
}

/// What a death now would bring.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeathNow {
    /// What would follow.
    pub brings: Brings,
    /// The checkpoint that would be restored.
    pub seq: Option<u64>,
    /// When this checkpoint was taken.
    pub taken: Option<String>,
    /// Why no checkpoint would be used, although there are checkpoints.
    pub why: Option<String>,
}

/// What would follow a death.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Brings {
    /// A restore of a checkpoint.
    Restore,
    /// A start from the beginning, with the files rolled back to the beginning.
    Beginning,
    /// A start from the beginning, with the present files.
    #[default]
    PresentFiles,
    /// No restart.
    End,
}

impl std::fmt::Display for Brings {
    /// Writes the serialised name.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

impl std::fmt::Display for DeathNow {
    /// Writes a verb phrase, for a sentence that begins with "a death now".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.brings, self.seq) {
            (Brings::Restore, Some(seq)) => write!(f, "restores checkpoint {seq}")?,
            (Brings::Restore, None) => f.write_str("restores a checkpoint")?,
            (Brings::Beginning, _) => {
                f.write_str(
                    "starts the program from its beginning, and rolls its files back to the beginning",
                )?;
            }
            (Brings::PresentFiles, _) => {
                f.write_str("starts the program from its beginning with its present files")?;
            }
            (Brings::End, _) => f.write_str("ends the run")?,
        }
        self.why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// A period in which no checkpoint succeeds: the reason, and the start of the period.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Failing {
    pub(crate) reason: String,
    pub(crate) since: String,
}

/// The facts that a guardian records about its subject. The command `status` shows these facts unchanged.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct SubjectFacts {
    pub name: String,
    /// `never`, `on-failure` or `always`. In the status of a component: `never`, `stateless` or `checkpointed`.
    pub policy: String,
    /// Number of the current incarnation, counted from 1.
    pub incarnation: u64,
    pub restarts: u64,
    pub last_death: Option<Death>,
    /// Number of checkpoints that this guardian has committed.
    pub checkpoints: u64,
    /// Number of these checkpoints, and of checkpoints in flight, to which files cannot be rolled back.
    #[serde(default)]
    pub inexact_checkpoints: u64,
    /// Number of checkpoints that were taken and are still being written.
    #[serde(default)]
    pub in_flight: usize,
    /// Requested checkpoints per second.
    pub requested_hz: f64,
    /// Recently achieved checkpoints per second.
    pub achieved_hz: f64,
    /// Pauses of the subject for checkpoints.
    pub pause_us: PauseMicroseconds,
    /// The pause budget: the longest time that one stop should last.
    #[serde(default)]
    pub max_pause_us: Option<u64>,
    /// The requested pause budget (`--max-pause`), if a stop of all threads needs more.
    #[serde(default)]
    pub max_pause_asked_us: Option<u64>,
    /// The slices of the last checkpoint.
    #[serde(default)]
    pub slices: SlicesReport,
    /// The checkpoints in the store.
    #[serde(default)]
    pub stored: StoredReport,
    /// What the checkpoints cost the subject.
    #[serde(default)]
    pub costs: CostsReport,
    /// Results of comparing checkpoints with the subject.
    #[serde(default)]
    pub verified: VerifiedReport,
    /// TCP connections of the subject to processes outside of the subject.
    #[serde(default)]
    pub connections: ConnectionsReport,
    /// Name of the tracker. The tracker finds dirty pages.
    #[serde(default)]
    pub tracker: String,
    /// Files that the subject writes, and what a restart does if these files have changed.
    #[serde(default)]
    pub files: FilesReport,
    /// Why the last restart started the program from its beginning although there were checkpoints.
    #[serde(default)]
    pub fresh: Option<FreshReport>,
    /// The hold that an operator has ordered. `None` while the subject is not held.
    #[serde(default)]
    pub held: Option<HeldReport>,
    /// What a death now would bring. `None` if the subject takes no checkpoints, or is never restarted.
    #[serde(default)]
    pub death_now: Option<DeathNow>,
    /// Age of the checkpoint that the last restart has restored, at the death before.
    #[serde(default)]
    pub restored_age_us: Option<u64>,
    /// Since when no checkpoint was committed, and why. `None` while checkpoints are on time.
    #[serde(default)]
    pub late: Option<LateReport>,
    /// For each reason: the number of checkpoints that were taken late.
    #[serde(default)]
    pub held_back: Vec<RefusalReport>,
    /// For each reason: the number of checkpoints that were not taken.
    pub refusals: Vec<RefusalReport>,
}

/// The checkpoints of a subject in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoredReport {
    /// Number of checkpoints that can be restored.
    pub kept: usize,
    /// The maximum size (`--store-max`) for the newest checkpoint. `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Whether fewer checkpoints are kept than `--keep` requests, because of the maximum size.
    pub is_shortened: bool,
}

/// What the checkpoints of a subject cost.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CostsReport {
    /// How much longer the subject took because of recent checkpoints, in per cent of the time without them: stops, page
    /// faults, and processor time of the guardian that the subject could have used.
    pub percent: f64,
    /// The limit (`--cost-max`). `None`: no limit.
    pub max_percent: Option<f64>,
    /// The time between two checkpoints, if the limit makes it longer than requested.
    pub interval_us: Option<u64>,
    /// Number of pages that checkpoints have copied, since the start of the guardian.
    pub copied_pages: u64,
    /// Number of these copies that a later copy of the same checkpoint has replaced.
    pub wasted_copies: u64,
}

impl CostsReport {
    /// Counts the copies for a committed checkpoint, which contains `pages` pages.
    pub(crate) fn note_copies(&mut self, copied: u64, pages: u64) {
        self.copied_pages += copied;
        self.wasted_copies += copied.saturating_sub(pages);
    }
}

/// Numbers of TCP connections of a subject to outside processes: the present connections, and what happened to
/// connections at the deaths of the subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ConnectionsReport {
    /// Number of connections that carried no data between the last two checkpoints. An idle connection stays open when
    /// the subject dies.
    pub idle: usize,
    /// Number of connections that stayed open at a death, counted since the start of the guardian.
    pub kept: u64,
    /// Number of connections that had ended with the program although the restored checkpoint contained them. Counted
    /// since the start of the guardian.
    pub ended: u64,
    /// Number of connections whose output is held until a checkpoint contains the output. These connections are rolled
    /// back with the program (level L3 in `docs/operating/channels.md`).
    #[serde(default)]
    pub held: usize,
    /// Number of sockets at the last checkpoint whose output is not held although the output of other sockets is held:
    /// UDP sockets without a peer, and listening Unix sockets.
    #[serde(default)]
    pub unheld: usize,
    /// Number of connections that were rolled back to a checkpoint, counted since the start of the guardian.
    #[serde(default)]
    pub rewound: u64,
    /// Number of times that held output was sent before a checkpoint contained it, counted since the start of the
    /// guardian.
    #[serde(default)]
    pub late_releases: u64,
}

/// The content of the status file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(flatten)]
    pub(crate) facts: SubjectFacts,
    pub(crate) boot: String,
    pub(crate) guardian: ProcessName,
    pub(crate) root: ProcessName,
    /// The other roots of a group of components.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) other_roots: Vec<ProcessName>,
    pub(crate) state: SubjectState,
    /// Name of the socket on which the guardian accepts requests.
    #[serde(default)]
    pub(crate) requests: String,
    /// How the program was started. `None` if a running process was adopted.
    #[serde(default)]
    pub(crate) started_as: Option<StartedAs>,
    pub(crate) last_checkpoint: Option<String>,
    /// Sequence number of the first checkpoint of this program. Older checkpoints of this name belong to other
    /// programs.
    pub(crate) first_sequence: u64,
    /// Bytes that the log occupies on disk. `None` before the first commit.
    #[serde(default)]
    pub(crate) store_bytes: Option<u64>,
    /// The current period without checkpoints. `None` while checkpoints succeed.
    #[serde(default)]
    pub(crate) failing: Option<Failing>,
}

impl Record {
    /// Reads the status file in the directory of a subject. Returns `None` if the file does not exist.
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

    /// Writes the record to the status file in the directory of a subject.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        replace_json(&directory.join(FILE), &directory.join(format!(".{FILE}.new")), self)
    }

    /// Marks the status file in this directory as outdated, because a newer record could not be written. A change of the
    /// mode needs no space on a full disk. The next record that is written replaces the file and its mode.
    pub(crate) fn mark_outdated(directory: &Path) {
        // The status is only the worse for an error here: the next guardian trusts it.
        let _ = std::fs::set_permissions(directory.join(FILE), Permissions::from_mode(OUTDATED_MODE));
    }

    /// Reports whether the status file in this directory is marked as outdated.
    pub(crate) fn is_outdated(directory: &Path) -> bool {
        std::fs::metadata(directory.join(FILE))
            .is_ok_and(|metadata| metadata.permissions().mode() & 0o777 == OUTDATED_MODE)
    }

    /// Reports whether the guardian that wrote the record still lives.
    pub(crate) fn is_guarded(&self) -> bool {
        self.is_of_this_boot() && self.guardian.is_alive()
    }

    /// Reports whether the root process that the record names still lives.
    pub(crate) fn has_root(&self) -> bool {
        self.is_of_this_boot() && self.root.is_alive()
    }

    /// Reports whether this is a process of the subject: its root, or a process with the mark of its guardian.
    pub(crate) fn has_process(&self, pid: Pid) -> bool {
        let mut roots = std::iter::once(&self.root).chain(&self.other_roots);
        let is_root = roots.any(|root| root.pid == pid.get() && root.is_alive());
        self.is_of_this_boot() && (is_root || mark::is_on(pid, &self.requests))
    }

    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.boot == boot_id()
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

/// Replaces the file `path` with the JSON of a value. Writes the file `temporary` in the same directory, and renames
/// this file to `path`.
pub(crate) fn replace_json(path: &Path, temporary: &Path, value: &impl Serialize) -> Result<()> {
    let failed = |error: std::io::Error| Error::path("write", path, error);
    let text = serde_json::to_vec_pretty(value).map_err(|error| failed(error.into()))?;
    let mut file = trust::open_or_create(temporary, trust::Access::Write)?;
    let written = file.set_len(0).and_then(|()| file.write_all(&text));
    written.and_then(|()| std::fs::rename(temporary, path)).map_err(|error| {
        // An error of the removal is ignored, because the first error is reported.
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
            boot: boot_id(),
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
