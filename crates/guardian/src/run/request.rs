//! A run request names the program or process that is guarded, and contains the options of the run.
//!
//! Owns: the request and its defaults.
//! Does not: execute the request.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::time::Duration;

use engine::Tuning;
use model::{ByteCount, Pid, ProcessKey};
use store::{Codec, SizeLimit};
use supervise::{BackOffPlan, ChangedFiles, CostLimit, RestartLimit, RestartPolicy, Success};

use super::launch::Launch;
use crate::location::StoreLocation;

/// Minimum time between two checkpoints.
pub const EVERY_MIN: Duration = Duration::from_millis(10);
/// Default time between two checkpoints.
pub const EVERY_DEFAULT: Duration = Duration::from_secs(30);
/// Default time for which data must be unchanged before it is compressed. If a program writes the same data again, it
/// usually does so within this time.
pub const COMPRESS_AFTER_DEFAULT: Duration = Duration::from_secs(60);
/// Default maximum size of the undo log of files, in bytes.
pub const FILES_UNDO_MAX_DEFAULT: ByteCount = ByteCount(2 << 30);
/// Default for the maximum fraction of time that is spent on keeping old file contents.
const FILES_COST_MAX_DEFAULT: f64 = 0.1;
/// Default for the maximum fraction of time that checkpoints cost the program.
const COST_MAX_DEFAULT: f64 = 0.1;
/// Default for the maximum age of a checkpoint to which files are set back: this number of intervals between
/// checkpoints, and at least `FILES_BACK_MIN`. A few checkpoints may be late or fail.
const FILES_BACK_INTERVALS: u32 = 4;
/// Minimum of the default for the maximum age. A checkpoint of a large program can take seconds, and can cost a second:
/// the interval must become ten times as long before this is a tenth.
const FILES_BACK_MIN: Duration = Duration::from_secs(20);
/// Maximum time between two checkpoints, or between two checkpoints to which files can be rolled back, if a cost limit
/// determines this time.
const APART_MAX: Duration = Duration::from_secs(30);
/// Maximum time for which an operator can hold a subject.
pub const HELD_MAX: Duration = Duration::from_mins(10);
/// Default number of checkpoints that are kept.
pub const KEEP_DEFAULT: usize = 8;

/// The name that selects the best tracker that works. A tracker finds dirty pages.
pub const TRACKER_DEFAULT: &str = "auto";

/// A request to guard one subject.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The program or process that is guarded.
    pub what: Guarded,
    /// A running process of the command, started by an earlier guardian. The run takes over this process, and does not
    /// start the command.
    pub runs_already: Option<ProcessKey>,
    /// How the program is started, except its command.
    pub launch: Launch,
    /// Whether the remaining processes of the tree are ended after the end of the root.
    pub ends_tree: bool,
    /// Name of the subject. `None` names the subject after its program.
    pub name: Option<String>,
    /// Time between two checkpoints. With `None`, no checkpoint is taken, and each restart starts the program from its
    /// beginning.
    pub every: Option<Duration>,
    /// Whether only one checkpoint is taken after each start from the beginning. This checkpoint is not taken before
    /// `every` has passed since the start.
    pub once: bool,
    /// Whether TCP output of the program is held until a checkpoint contains the output.
    pub holds_output: bool,
    /// Whether periodic checkpoints wait until the subject has reported that it is ready.
    pub await_ready: bool,
    /// Whether checkpoints are taken although a restore may lose connections to processes outside of the tree.
    pub lose_connections: bool,
    /// The store of the images.
    pub store: StoreLocation,
    /// Number of images that are kept.
    pub keep: usize,
    /// The codec that compresses unchanged data in the store. `None` leaves the data uncompressed.
    pub compression: Option<&'static dyn Codec>,
    /// How long data must be unchanged before it is compressed.
    pub compress_after: Duration,
    /// The number n, if every n-th checkpoint is compared with the subject. The comparison is made page by page, before
    /// the subject is resumed.
    pub verify_every: Option<NonZeroU64>,
    /// Whether dirty pages are scanned without taking checkpoints, to measure the cost of tracking alone.
    pub dry_run_tracking: bool,
    /// Name of the tracker that finds dirty pages, or `auto`.
    pub tracker: String,
    /// Parameters of the pause and of the copies.
    pub tuning: Tuning,
    /// Which deaths are followed by a restart.
    pub policy: RestartPolicy,
    /// The name of the policy in a system file. `None`: the run is no component, and its policy is `policy`.
    pub component_policy: Option<&'static str>,
    /// The ends of the program that count as success.
    pub success: Success,
    /// Whether the death of a process by SIGKILL, SIGSEGV, SIGBUS or SIGABRT counts as a death of the whole subject.
    pub child_signals: bool,
    /// What a restart does with files that the subject has changed. With `None`, files are rolled back if possible.
    /// Otherwise, the policy is `Trim`.
    pub files: Option<ChangedFiles>,
    /// Maximum age of a checkpoint to which changed files are set back. `None` means the default, which depends on
    /// `every`.
    pub files_back_max: Option<Duration>,
    /// Maximum size of the undo log of files.
    pub files_undo_max: ByteCount,
    /// Maximum fraction of time that is spent on keeping old file contents; 0.1 is a tenth. With `None`, there is no
    /// limit if output is held. Otherwise, the limit is `FILES_COST_MAX_DEFAULT`.
    pub files_cost_max: Option<f64>,
    /// Maximum size of the checkpoints in the store.
    pub store_max: SizeLimit,
    /// Maximum fraction of time that checkpoints cost the program; 0.1 is a tenth.
    pub cost_max: CostMax,
    /// Maximum number of restarts in a time window.
    pub limit: RestartLimit,
    /// How long a restart is delayed.
    pub back_off: BackOffPlan,
}

impl RunRequest {
    /// Returns a request with all options at their defaults.
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
            component_policy: None,
            success: Success::default(),
            child_signals: false,
            files: None,
            files_back_max: None,
            files_undo_max: FILES_UNDO_MAX_DEFAULT,
            files_cost_max: None,
            store_max: SizeLimit::default(),
            cost_max: CostMax::default(),
            limit: RestartLimit::default(),
            back_off: BackOffPlan::default(),
        }
    }

    /// Returns the maximum age of a checkpoint to which changed files are set back.
    pub(crate) fn files_back_max(&self) -> Duration {
        let default =
            || self.every.unwrap_or_default().saturating_mul(FILES_BACK_INTERVALS).max(FILES_BACK_MIN);
        self.files_back_max.unwrap_or_else(default)
    }

    /// Returns the maximum fraction of time for keeping old file contents, and the maximum time between two checkpoints
    /// with file rollback that this limit can cause. Held output waits for such a checkpoint, so it is not limited by
    /// default. A restart always finds such a checkpoint within `files_back_max`.
    pub(crate) fn files_costs(&self) -> (f64, Duration) {
        let default = if self.holds_output { f64::INFINITY } else { FILES_COST_MAX_DEFAULT };
        (self.files_cost_max.unwrap_or(default), APART_MAX.min(self.files_back_max() / 2))
    }

    /// Returns the limit of the costs of checkpoints. Held output waits for checkpoints, so it is not limited by default.
    /// A restart always finds a checkpoint within `files_back_max`.
    pub(crate) fn cost_limit(&self) -> Option<CostLimit> {
        let share = match self.cost_max {
            CostMax::Off => return None,
            CostMax::Standard if self.holds_output => return None,
            CostMax::Standard => COST_MAX_DEFAULT,
            CostMax::Share(share) => share,
        };
        Some(CostLimit { share, interval_max: APART_MAX, age_max: self.files_back_max() })
    }

    /// Returns the process that is guarded, if the process already ran before this run.
    pub(crate) fn adopted(&self) -> Option<Pid> {
        match self.what {
            Guarded::Process(pid) => Some(pid),
            Guarded::Command(_) => self.runs_already.map(|key| key.pid),
        }
    }
}

/// The limit of the costs of checkpoints (`--cost-max`).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum CostMax {
    /// No limit if output is held, otherwise `COST_MAX_DEFAULT`.
    #[default]
    Standard,
    /// A fraction of the time; 0.1 is a tenth.
    Share(f64),
    /// No limit.
    Off,
}

/// The program or process that `run` guards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Guarded {
    /// A program that is started for the run: its name and arguments.
    Command(Vec<OsString>),
    /// A process that runs already.
    Process(Pid),
}
