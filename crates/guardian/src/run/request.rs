//! The request of a run.
//!
//! Owns: the request and its defaults.
//! Does not: carry it out.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::time::Duration;

use engine::Tuning;
use model::{ByteCount, Pid, ProcessKey};
use store::Codec;
use supervise::{BackOffPlan, ChangedFiles, RestartLimit, RestartPolicy};

use super::launch::Launch;
use crate::location::StoreLocation;

/// The shortest time between two checkpoints.
pub const EVERY_MIN: Duration = Duration::from_millis(10);
/// The time between two checkpoints unless chosen.
pub const EVERY_DEFAULT: Duration = Duration::from_secs(30);
/// What is compressed has not changed for so long, unless chosen: what most programs write again, they write again
/// before that.
pub const COMPRESS_AFTER_DEFAULT: Duration = Duration::from_secs(60);
/// Default bound of the undo log of files, in bytes.
pub const FILES_UNDO_MAX_DEFAULT: ByteCount = ByteCount(2 << 30);
/// Default part of the time that keeping files may cost.
pub const FILES_COST_MAX_DEFAULT: f64 = 0.1;
/// Checkpoints that are kept unless chosen.
pub const KEEP_DEFAULT: usize = 8;

/// The tracker unless chosen: the best that works.
pub const TRACKER_DEFAULT: &str = "auto";

/// The request of a run.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// What is guarded.
    pub what: Guarded,
    /// A process of the command that an earlier guardian has started, and that is taken over instead.
    pub runs_already: Option<ProcessKey>,
    /// How the program is started, beside its command.
    pub launch: Launch,
    /// Processes of the tree that outlive the root are ended with it.
    pub ends_tree: bool,
    /// The subject's name; without one it is named after its program.
    pub name: Option<String>,
    /// Time between two checkpoints. Without it none is taken, and a restart is one from the beginning.
    pub every: Option<Duration>,
    /// Take one checkpoint of a program that starts from its beginning, so long after that at the earliest, and no more.
    pub once: bool,
    /// Hold TCP output of the program until a checkpoint contains it.
    pub holds_output: bool,
    /// Take no checkpoint by the clock before the subject has reported that it is ready.
    pub await_ready: bool,
    /// Accept that connections to processes outside the tree are ended by the peer after a restore.
    pub lose_connections: bool,
    /// Where its images live.
    pub store: StoreLocation,
    /// How many of them are kept.
    pub keep: usize,
    /// How unchanged data is compressed in the store, if it is.
    pub compression: Option<&'static dyn Codec>,
    /// How long that while is.
    pub compress_after: Duration,
    /// Compare every n-th checkpoint with the subject, page by page, before the subject is resumed.
    pub verify_every: Option<NonZeroU64>,
    /// Look for dirty pages, and take no checkpoint: what tracking alone costs.
    pub dry_run_tracking: bool,
    /// How dirty pages are found: a tracker's name, or `auto`.
    pub tracker: String,
    /// How the pause and the copies are made.
    pub tuning: Tuning,
    /// Which deaths are followed by a restart.
    pub policy: RestartPolicy,
    /// The death of a process by SIGKILL, SIGSEGV, SIGBUS or SIGABRT counts as one of the whole subject.
    pub child_signals: bool,
    /// What a restart does with files that the subject has changed; `None` for going back where that is possible, else
    /// a start from the beginning when they have changed.
    pub files: Option<ChangedFiles>,
    /// Bytes that the undo log of files may take.
    pub files_undo_max: ByteCount,
    /// Part of the time that keeping files may cost, 0.1 for a tenth.
    pub files_cost_max: f64,
    /// How often at most.
    pub limit: RestartLimit,
    /// How long a restart waits.
    pub back_off: BackOffPlan,
}

impl RunRequest {
    /// With all that can be chosen left at its default.
    #[must_use]
    pub fn new(what: Guarded, store: StoreLocation) -> Self {
        Self {
            what,
            runs_already: None,
            launch: Launch::default(),
            ends_tree: false,
            name: None,
            every: Some(EVERY_DEFAULT),
            once: false,
            holds_output: false,
            await_ready: false,
            lose_connections: false,
            store,
            keep: KEEP_DEFAULT,
            compression: None,
            compress_after: COMPRESS_AFTER_DEFAULT,
            verify_every: None,
            dry_run_tracking: false,
            tracker: TRACKER_DEFAULT.to_owned(),
            tuning: Tuning::default(),
            policy: RestartPolicy::default(),
            child_signals: false,
            files: None,
            files_undo_max: FILES_UNDO_MAX_DEFAULT,
            files_cost_max: FILES_COST_MAX_DEFAULT,
            limit: RestartLimit::default(),
            back_off: BackOffPlan::default(),
        }
    }

    /// The process that is guarded, if it runs already.
    pub(crate) fn adopted(&self) -> Option<Pid> {
        match self.what {
            Guarded::Process(pid) => Some(pid),
            Guarded::Command(_) => self.runs_already.map(|key| key.pid),
        }
    }
}

/// What `run` guards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Guarded {
    /// A program, started for the purpose: its name and arguments.
    Command(Vec<OsString>),
    /// A process that runs already.
    Process(Pid),
}
