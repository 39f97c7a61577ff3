//! An event records what has happened to a guarded subject, or to a system of subjects. The system file describes the
//! subjects of a system, which are its components. The guardian writes events to a journal, and reports events to the
//! operator.
//!
//! Owns: the type of an event, and the form in which the journal contains an event and the phases of a checkpoint.
//! Invariants: names of events and of keys are a stable interface. Names are added, but never changed. An event that
//! was written by an earlier version may lack a phase. The duration of this phase counts as zero.
//! Does not: print events, write events, or make the text of an event; `wording` makes the text.

pub(crate) mod kind;
pub(crate) mod reason;
pub(crate) mod severity;
pub(crate) mod wording;

use std::fmt;

use engine::{Comparison, Connections, Phase, Phases};
use model::{Escaped, Sequence};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use supervise::{ChangedFiles, Fault};
use undo::back::{MovedAside, WentBack};

use crate::record::SlicesReport;
use crate::time;

/// Maximum number of files that one event names.
const NAMED_MAX: usize = 3;

/// One event. The variant states what has happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the keys of the contract")]
pub enum RunEvent {
    /// The program was started from its beginning, for the first time or again.
    Started {
        pid: i32,
        /// The reason why no checkpoint was used. `None` if there was no checkpoint.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        why: Option<String>,
    },
    /// The restart is delayed, because two successive incarnations of the program were short.
    BackOff { wait_us: u64 },
    /// A step of the restart has failed for a reason that is not the fault of a checkpoint. The step is repeated.
    RestartRepeated { reason: String, wait_us: u64 },
    /// Since the checkpoint, a file has only grown. A restore has moved the new bytes from the file to `to`.
    MovedAside { path: String, bytes: u64, to: String },
    /// The subject writes files that can prevent a restart from a checkpoint. A file in `in_place` prevents the restart
    /// if the file changes after the checkpoint. A file in `unknown` always prevents the restart.
    FilesInPlace { in_place: Vec<String>, unknown: Vec<String> },
    /// The files of this run are not rolled back with the program.
    FilesCompared { reason: String },
    /// A restore has rolled no file back. If `is_compared`, the files that were open for writing at the checkpoint have
    /// not changed.
    FilesNotRolledBack { is_compared: bool },
    /// Files were rolled back to checkpoint `seq`. The number 0 means the beginning of the program.
    FilesWentBack {
        seq: u64,
        changed: usize,
        aside: usize,
        /// Paths of the first files that the rollback has moved to another directory.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        aside_paths: Vec<String>,
        uncovered: usize,
        /// Number of standard streams that were not rolled back, because other programs write to their files.
        left: usize,
    },
    /// A checkpoint with connections was restored. The numbers state how many connections stayed open, were rolled
    /// back, or ended.
    Connections { seq: u64, kept: usize, rewound: usize, ended: usize },
    /// Held output of the program was sent without a checkpoint, because no checkpoint that a restart uses became durable
    /// within `after_us`.
    OutputReleased {
        after_us: u64,
        #[serde(default)]
        reason: String,
    },
    /// Files cannot be rolled back to checkpoint `seq`.
    FilesDeferred { seq: u64, reason: String },
    /// Files cannot be rolled back to any existing checkpoint.
    FilesBroken { reason: String },
    /// Files can be rolled back again, to checkpoint `seq`.
    FilesExactAgain { seq: u64 },
    /// Files can be rolled back to checkpoint `seq` at most. This checkpoint is older than `--files-back-max`, so that a
    /// death now starts the program from its beginning. The number 0 means the beginning of the program.
    FilesTooOld { seq: u64, age_us: u64, reason: String },
    /// No checkpoint was committed for the time `age_us`, which is several times the requested interval.
    CheckpointsLate { age_us: u64, reason: String },
    /// A stop of all threads of the program takes longer than the pause budget `asked_us`, even if no page is copied. Each
    /// stop may now last `max_pause_us`.
    PauseRaised { asked_us: u64, max_pause_us: u64 },
    /// Checkpoints at the requested interval `asked_us` would cost the program more than `max_percent` of its time. They
    /// are taken every `interval_us`.
    IntervalRaised { asked_us: u64, interval_us: u64, max_percent: f64 },
    /// After a `CheckpointsLate` event, checkpoint `seq` was committed.
    CheckpointsOnTime { seq: u64 },
    /// A program is guarded from now on, under the name `subject`. Checkpoints are taken every `every_us`; `None` means
    /// that no checkpoints are taken. Only the operator receives this event.
    Protected { subject: String, every_us: Option<u64>, files: ChangedFiles, is_adopted: bool },
    /// A running program is guarded from now on, under the name `subject`.
    Adopted {
        pid: i32,
        #[serde(default)]
        subject: String,
    },
    /// The program `pid` of an earlier run still runs. It is guarded again, and its command is not executed.
    NotStartedTwice { pid: i32 },
    /// A checkpoint was committed.
    Checkpoint(CheckpointEvent),
    /// Dirty pages were scanned, but no checkpoint was taken.
    Scan { pages: u64, scan_us: u64, pause_us: u64, arming_us: u64 },
    /// A checkpoint was compared with the subject, page by page.
    Verified {
        seq: u64,
        pages: u64,
        differences: u64,
        /// Descriptions of the first differences.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        examples: Vec<String>,
    },
    /// A checkpoint was not taken, for a reason that was not reported before.
    Refused { reason: String },
    /// The status file cannot be written and is out of date. Only the operator receives this event.
    StatusUnwritable { reason: String },
    /// Events could not be recorded, because the disk was full or did not respond.
    EventsLost { count: u64 },
    /// After a `Refused` event, checkpoint `seq` was committed.
    Resumed { seq: u64 },
    /// The subject died while a checkpoint was being written. The checkpoint was dropped.
    Dropped { seq: u64 },
    /// A process has held back checkpoints for too long, so the guardian has ended the hold.
    HoldEnded { pid: i32 },
    /// Another tracker is used to find dirty pages.
    Tracker { tracker: String, reason: String },
    /// The subject died.
    Died { pid: i32, signal: Option<i32>, exit: Option<i32> },
    /// A process other than the root has failed, so the root is ended.
    ChildDied {
        pid: i32,
        signal: i32,
        /// Whether this is not the first failure of a child in this run.
        #[serde(default)]
        again: bool,
    },
    /// A check has found a fault in the subject, so the subject is killed.
    Faulted { pid: i32, fault: Fault },
    /// For a requested restart, the subject is stopped until checkpoint `seq` is durable.
    StoppedForRestart { pid: i32, seq: u64 },
    /// A requested restart was called off, and the subject continues.
    NotRestarted { reason: String },
    /// The kernel did not report all starts and deaths of processes.
    ChildrenUnseen,
    /// A process has left the tree of the subject, because the parent of the process has ended. Daemons leave the tree
    /// in this way. No checkpoint contains the process.
    Departed {
        pid: i32,
        program: String,
        /// Further processes that have left the tree, if there are many.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        others: Vec<i32>,
        /// Whether the run ends.
        #[serde(default)]
        is_end: bool,
    },
    /// Repeated deaths count against checkpoint `seq`. The checkpoint is skipped from now on.
    Poisoned { seq: u64 },
    /// A checkpoint could not be restored.
    RestoreFailed { seq: u64, reason: String },
    /// The subject runs again.
    Restored {
        pid: i32,
        seq: u64,
        took_us: u64,
        /// Age of the checkpoint at the death, in running time of the program. The restart has discarded the work of
        /// this time. `None` if an earlier guardian has taken the checkpoint.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        age_us: Option<u64>,
    },
    /// The command of `--on-restore` has failed. The program goes on.
    OnRestoreFailed { reason: String },
    /// The subject has exited by itself with the code `exit` again, and is not restarted.
    EndedAgain { exit: i32 },
    /// Each checkpoint has led to another death, and files cannot be rolled back to the beginning of the program. The
    /// program is not restarted.
    NotBegunAnew {},
    /// An executable page has changed.
    CodeChanged { pid: i32, file: String, offset: u64, bits: Option<u32>, what: String },
    /// A damaged page of a file stays in the page cache, so the next incarnation maps the damaged page.
    DamageStays { file: String, offset: u64, reason: String },
    /// A component that an earlier guardian has started still runs. The system file does not contain this component.
    LeftRunning { pid: i32 },
    /// At the end of the system, remaining processes of its components were ended.
    RestEnded { count: usize },
    /// A component is started from its beginning, although checkpoints of an earlier system exist. `checkpoint` is the
    /// last of these checkpoints.
    NotContinued { checkpoint: u64 },
    /// While a component is down, its listening sockets are not kept open.
    ListenersNotKept { reason: String },
    /// The system file was read again, and its changes take effect.
    Reloaded { added: Vec<String>, removed: Vec<String>, restarted: Vec<String> },
    /// In the system file, keys of a component have new values. The keys are grouped by the time when the new values
    /// take effect.
    KeysChanged { restarted: Vec<String>, at_once: Vec<String>, next_run: Vec<String> },
    /// The system file was read again, but its changes do not take effect.
    NotReloaded { reason: String },
    /// A component is ready.
    Ready { took_us: u64 },
    /// A component was not ready in time, and is being killed.
    NotReady { timeout_us: u64 },
    /// The start of a component waits until the components in `needs` are ready.
    Waits { needs: Vec<String> },
    /// A component could not be started, or could not be kept running.
    ComponentFailed { reason: String },
    /// A component was ended on request.
    Stopped {},
    /// A component did not end in time after SIGTERM, and is being killed.
    NotStopped { timeout_us: u64 },
    /// The run of a component is over, and its policy does not restart it.
    StaysEnded {},
    /// A component is not started, because the system shuts down.
    NotStarted {},
    /// A component is no longer restarted, because of `cause`. The text `follows` states the consequence.
    GivenUp { cause: String, follows: String },
    /// The program that `on_give_up = "exec"` names was started.
    Executed { pid: i32, program: String },
    /// A component is restarted, because the component `died` has died. Both components belong to one group.
    GroupRestarts { died: String },
    /// Another component, or the operator, has complained about this component.
    Complaint { by: String, weight: u32, why: String },
    /// The weights of the complaints add up to `sum`. When the sum reaches `quorum`, the component is restarted.
    ComplaintCounted { sum: u32, quorum: u32 },
    /// A complaint is not counted.
    ComplaintRefused { reason: String },
    /// All components are ended, and are then started again.
    SystemRestarts {},
    /// All components are ended, and are not started again.
    SystemGoesDown { has_failed: bool },
    /// The subject was restarted too often.
    GaveUp { restarts: usize, within_us: u64 },
    /// The program is stopped after a checkpoint, because an operator holds it.
    Held { pid: i32, seq: u64, until: String },
    /// The hold has ended, and the program continues. `is_late`: the time limit has ended the hold.
    Released { pid: i32, is_late: bool },
    /// A member of a group has ended. The other members continue.
    MemberLeft { pid: i32, signal: Option<i32>, exit: Option<i32> },
    /// The subject has ended, and is not restarted.
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
    /// How long the subject was stopped before the pause, to attach trackers to new processes, and in aborted captures.
    /// A tracker finds the pages to which the subject has written.
    pub arming_us: u64,
    pub pause_us: u64,
    /// The pause budget: the longest time that one stop should last.
    #[serde(default)]
    pub max_pause_us: Option<u64>,
    /// The slices: short stops before the pause, in which pages were copied.
    #[serde(default)]
    pub slices: SlicesReport,
    #[serde(flatten)]
    pub phases: PhaseTimes,
    pub hash_us: u64,
    pub write_us: u64,
    /// Time from the end of the pause until the checkpoint was durable.
    pub commit_us: u64,
    /// Number of pages that the scan inside the pause inspected.
    pub scanned_pages: u64,
    /// Number of rounds of pre-copy.
    pub rounds: usize,
    /// Number of pages copied before the pause. A page that was copied twice counts twice.
    pub precopied_pages: u64,
    /// Number of pages copied inside the pause.
    pub residual_pages: u64,
    /// Number of pages of the subject.
    pub pages: u64,
    /// Bytes written for the checkpoint.
    pub bytes: u64,
    /// Number of pages that the compaction of the log has moved. `bytes` includes these pages.
    pub moved_pages: u64,
}

impl RunEvent {
    pub(crate) fn moved_aside(part: &MovedAside) -> Self {
        let (path, to) = (part.path.display().to_string(), part.to.display().to_string());
        Self::MovedAside { path, bytes: part.bytes.get(), to }
    }

    /// Builds the event of a rollback. `left` is the number of standard streams that were not rolled back.
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

    /// Builds the event about the connections of a restored checkpoint. Returns `None` if the checkpoint contained no
    /// connection.
    pub(crate) fn connections(sequence: Sequence, found: &Connections) -> Option<Self> {
        let Connections { kept, rewound, ended, .. } = *found;
        let seq = sequence.get();
        (kept + rewound + ended > 0).then_some(Self::Connections { seq, kept, rewound, ended })
    }

    pub(crate) fn verified(sequence: Sequence, found: &Comparison) -> Self {
        let example = |one: &engine::Difference| {
            let pid = one.pid.map_or("a shared object".to_owned(), |pid| format!("pid {pid}"));
            format!("{pid} at {} ({}), {} in the image", one.address, Escaped(&one.mapping), one.image)
        };
        Self::Verified {
            seq: sequence.get(),
            pages: found.pages.get(),
            differences: found.differences.get(),
            examples: found.first.iter().map(example).collect(),
        }
    }

    /// Reports whether events of this variant can occur at each checkpoint.
    pub(crate) fn is_frequent(&self) -> bool {
        matches!(self, Self::Checkpoint(_) | Self::Scan { .. } | Self::Verified { .. })
    }
}

/// The phases of a checkpoint: one key for each phase of [`Phase`], with its duration in microseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PhaseTimes {
    us: [u64; Phase::ALL.len()],
}

impl PhaseTimes {
    pub(crate) fn of(phases: &Phases) -> Self {
        let mut times = Self::default();
        phases.iter().for_each(|(phase, took)| times.us[phase as usize] = time::microseconds(took));
        times
    }

    /// Returns each phase with its duration in microseconds, in the order of execution.
    pub fn iter(&self) -> impl Iterator<Item = (Phase, u64)> {
        Phase::ALL.iter().map(|phase| (*phase, self.us[*phase as usize]))
    }

    #[cfg(test)]
    pub(crate) fn with(known: &[(Phase, u64)]) -> Self {
        let mut times = Self::default();
        known.iter().for_each(|(phase, us)| times.us[*phase as usize] = *us);
        times
    }
}

impl Serialize for PhaseTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Phase::ALL.len()))?;
        self.iter().try_for_each(|(phase, us)| map.serialize_entry(phase.key(), &us))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for PhaseTimes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Times)
    }
}

struct Times;

impl<'de> Visitor<'de> for Times {
    type Value = PhaseTimes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the phases of a checkpoint")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PhaseTimes, A::Error> {
        let mut times = PhaseTimes::default();
        while let Some(key) = map.next_key::<String>()? {
            if let Some(phase) = Phase::ALL.iter().find(|phase| phase.key() == key) {
                times.us[*phase as usize] = map.next_value()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckpointEvent;
    use super::*;

    #[test]
    fn phases_are_read_as_they_were_written_beside_other_keys() {
        let phases = PhaseTimes::with(&[(Phase::Precopy, 70), (Phase::Scan, 30)]);
        let event = CheckpointEvent { seq: 7, pages: 5, phases, ..CheckpointEvent::default() };
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.contains("\"scan_us\":30"), "{text}");
        assert_eq!(serde_json::from_str::<CheckpointEvent>(&text).unwrap(), event);
        // Earlier versions wrote events without the key `room_us`, and with the key `memory_first`.
        let text = text.replace("\"room_us\":0,", "\"memory_first\":true,");
        let read: CheckpointEvent = serde_json::from_str(&text).unwrap();
        assert_eq!(read.phases, event.phases);
    }
}
