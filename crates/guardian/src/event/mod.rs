//! The events of a guarded subject.
//!
//! Owns: the one type of an event, its form in the journal, the phases of a checkpoint in this form.
//! Invariants: names of events and keys are a contract: they are added, and never changed. A phase that is missing in
//! an event of an earlier version counts as zero.
//! Does not: print, write, or word an event; `wording` does the last.

pub(crate) mod severity;
pub(crate) mod wording;

use std::fmt;

use engine::{Comparison, Connections, Phase, Phases};
use model::{Escaped, Sequence};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use supervise::Fault;
use undo::back::{MovedAside, WentBack};

use crate::record::SlicesReport;
use crate::time;

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
    /// What has become of the connections that the program had at the checkpoint which is restored.
    Connections { seq: u64, kept: usize, rewound: usize, ended: usize },
    /// What the program sends is no longer held, since no checkpoint became durable for too long.
    OutputReleased { after_us: u64 },
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
    /// Dirty pages were scanned, and no checkpoint was taken.
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
    /// Checkpoints are not taken, for a new reason.
    Refused { reason: String },
    /// The status file cannot be written and is out of date. Reported to the operator only.
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
    /// A check from outside finds the subject faulty, and it is killed for that.
    Faulted { pid: i32, fault: Fault },
    /// The kernel did not report all starts and deaths of processes.
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
    /// An executable page has changed.
    CodeChanged { pid: i32, file: String, offset: u64, bits: Option<u32>, what: String },
    /// A damaged page of a file stays in memory, and the next incarnation maps it again.
    DamageStays { file: String, offset: u64, reason: String },
    /// A component of an earlier guardian runs, and the system file does not have it.
    LeftRunning { pid: i32 },
    /// Processes that components had left were ended with the system.
    RestEnded { count: usize },
    /// A component has checkpoints of an earlier system, of which this is the last, and is started from its beginning.
    NotContinued { checkpoint: u64 },
    /// Listeners of components do not stay while these are down.
    ListenersNotKept { reason: String },
    /// The system file was read again, and its changes take effect.
    Reloaded { added: Vec<String>, removed: Vec<String>, restarted: Vec<String> },
    /// Keys of a component have new values, by when these take effect.
    KeysChanged { restarted: Vec<String>, at_once: Vec<String>, next_run: Vec<String> },
    /// The system file was read again and is not followed.
    NotReloaded { reason: String },
    /// A component is ready.
    Ready { took_us: u64 },
    /// A component was not ready in time, and is killed.
    NotReady { timeout_us: u64 },
    /// A component is started once these are ready.
    Waits { needs: Vec<String> },
    /// A component could not be started, or not be kept running.
    ComponentFailed { reason: String },
    /// A component was ended on request.
    Stopped {},
    /// A component did not end in time after SIGTERM, and is killed.
    NotStopped { timeout_us: u64 },
    /// The run of a component is over, and its policy does not restart it.
    StaysEnded {},
    /// A component is not started, since the system goes down.
    NotStarted {},
    /// The consequence, when a component is no longer restarted.
    GivenUp { cause: String, follows: String },
    /// The program that `on_give_up = "exec"` names was started.
    Executed { pid: i32, program: String },
    /// A component is restarted since this member of its group died.
    GroupRestarts { died: String },
    /// A complaint about a component.
    Complaint { by: String, weight: u32, why: String },
    /// Complaints add up to `sum`; `quorum` restarts the component.
    ComplaintCounted { sum: u32, quorum: u32 },
    /// A complaint does not count.
    ComplaintRefused { reason: String },
    /// All components are ended, to be started again.
    SystemRestarts {},
    /// All components are ended, and none is started again.
    SystemGoesDown { has_failed: bool },
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
    pub(crate) fn moved_aside(part: &MovedAside) -> Self {
        let (path, to) = (part.path.display().to_string(), part.to.display().to_string());
        Self::MovedAside { path, bytes: part.bytes.get(), to }
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

    /// `None` if there were none.
    pub(crate) fn connections(sequence: Sequence, found: &Connections) -> Option<Self> {
        let Connections { kept, rewound, ended, .. } = *found;
        let seq = sequence.get();
        (kept + rewound + ended > 0).then_some(Self::Connections { seq, kept, rewound, ended })
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

/// The key that gives the order.
const MEMORY_FIRST: &str = "memory_first";

/// The phases of a checkpoint: one key for each phase of [`Phase`], with its duration in microseconds.
///
/// The keys also have `memory_first`: memory (scan, copy, objects) was captured before state (descriptors, files,
/// threads), as the tracker `write-protect` needs it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PhaseTimes {
    memory_first: bool,
    us: [u64; Phase::ALL.len()],
}

impl PhaseTimes {
    pub(crate) fn of(phases: &Phases) -> Self {
        let mut times = Self { memory_first: phases.memory_first, ..Self::default() };
        phases.iter().for_each(|(phase, took)| times.us[phase as usize] = time::microseconds(took));
        times
    }

    /// Each phase with its duration in microseconds, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (Phase, u64)> {
        Phase::in_order(self.memory_first).map(|phase| (phase, self.us[phase as usize]))
    }

    #[cfg(test)]
    pub(crate) fn with(memory_first: bool, known: &[(Phase, u64)]) -> Self {
        let mut times = Self { memory_first, ..Self::default() };
        known.iter().for_each(|(phase, us)| times.us[*phase as usize] = *us);
        times
    }
}

impl Serialize for PhaseTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Phase::ALL.len() + 1))?;
        map.serialize_entry(MEMORY_FIRST, &self.memory_first)?;
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
            } else if key == MEMORY_FIRST {
                times.memory_first = map.next_value()?;
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
        let phases = PhaseTimes::with(true, &[(Phase::Precopy, 70), (Phase::Scan, 30)]);
        let event = CheckpointEvent { seq: 7, pages: 5, phases, ..CheckpointEvent::default() };
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.contains("\"scan_us\":30") && text.contains("\"memory_first\":true"), "{text}");
        assert_eq!(serde_json::from_str::<CheckpointEvent>(&text).unwrap(), event);
        // As an earlier version wrote it.
        let text = text.replace("\"room_us\":0,", "").replace("\"memory_first\":true,", "");
        let read: CheckpointEvent = serde_json::from_str(&text).unwrap();
        assert_eq!(read.phases, PhaseTimes { memory_first: false, ..event.phases });
    }
}
