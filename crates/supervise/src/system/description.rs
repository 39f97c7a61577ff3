//! The keys of `system.toml`, and the defaults of these keys.
//!
//! `system.toml` describes one system. Most types below are tables of this file, and their fields are keys. The comment
//! on a field is the description of the key in the JSON schema.
//!
//! Owns: the types of the parsed file, and the check of tables that must contain exactly one of several keys.
//! Does not: compare components; `checks` compares them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use super::group::Group;
use super::values::{
    Percent, PercentLimit, Rate, Size, SizeLimit, StopSignal, SuccessfulEnd, Time, TimeRange,
};
use crate::status::{ChangedFiles, Success};

/// The content of a system file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// The settings for all components.
    pub system: Common,
    /// The components by name.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Component>")]
    pub component: BTreeMap<Spanned<String>, Component>,
    /// Groups of components that are restarted or checkpointed together, by name.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Group>")]
    pub group: BTreeMap<Spanned<String>, Group>,
}

/// The settings for all components.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Common {
    /// The name of the system.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The directory for checkpoints. Default: the store named by `--store`.
    pub store: Option<PathBuf>,
}

/// A program that is supervised and restarted.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Component {
    /// The program and its arguments, executed without a shell.
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub command: Spanned<Vec<String>>,
    /// What is done after a death of the component.
    #[serde(default)]
    pub policy: Policy,
    /// The time between two checkpoints, for `policy = "checkpointed"`.
    #[schemars(with = "Option<Time>")]
    pub every: Option<Spanned<Time>>,
    /// The components that must be ready before this component is started.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub needs: Vec<Spanned<String>>,
    /// The addresses to which this component connects. The key of an entry is the name of the component that listens at
    /// the address.
    ///
    /// A connection attempt to the address waits until the listening component is ready, even before the first
    /// listen(2). An address in the `ready` key of the listening component needs no entry.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub channels: BTreeMap<Spanned<String>, Spanned<String>>,
    /// The condition for readiness. Default: the component is ready as soon as it was started.
    pub ready: Option<Ready>,
    /// The check that finds out whether the component hangs. Default: no check.
    pub heartbeat: Option<Heartbeat>,
    /// The rules for restarts.
    #[serde(default)]
    pub restart: Restart,
    /// The sum of the weights of complaints at which the component is restarted. Default: 2 within a minute.
    pub complaints: Option<Complaints>,
    /// The time in which all executable pages of the component are compared once with the mapped files. Default: no
    /// comparison.
    pub integrity: Option<Time>,
    /// The user of the component's processes: a name or a number. Default: the user of `undying`.
    #[schemars(with = "Option<String>")]
    pub user: Option<Spanned<String>>,
    /// Environment variables, in addition to the environment variables of `undying`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The working directory. Default: the directory of the system file.
    #[schemars(with = "Option<PathBuf>")]
    pub directory: Option<Spanned<PathBuf>>,
    /// The limits above which the component is restarted.
    pub limits: Option<Limits>,
    /// The file to which standard output and standard error are appended. Default: the standard output and standard
    /// error of `undying`.
    #[schemars(with = "Option<PathBuf>")]
    pub log: Option<Spanned<PathBuf>>,
    /// Whether a stateless component is restarted from a checkpoint of its initialised state. The checkpoint is taken
    /// when the component becomes ready.
    #[schemars(with = "bool")]
    pub warm: Option<Spanned<bool>>,
    /// When TCP output of a checkpointed component is sent. Default: at once.
    #[schemars(with = "Output")]
    pub output: Option<Spanned<Output>>,
    /// What a restart of a checkpointed component does about changed files. Default: `rewind` if possible, else `trim`.
    #[schemars(with = "Option<FilesPolicy>")]
    pub files: Option<Spanned<FilesPolicy>>,
    /// The maximum age of a checkpoint to which changed files are set back. Beyond it, the component starts from its
    /// beginning with its present files. Default: four times `every`, at least 20 s.
    #[schemars(with = "Option<Time>")]
    pub files_back_max: Option<Spanned<Time>>,
    /// The maximum size of the record of old file contents. Default: 2GiB.
    #[schemars(with = "Option<Size>")]
    pub files_undo_max: Option<Spanned<Size>>,
    /// The maximum part of the time, in percent, that is spent on the record of old file contents. Beyond it, files can
    /// be rolled back to fewer checkpoints. Default: 10; no limit with `output = "committed"`.
    #[schemars(with = "Option<Percent>")]
    pub files_cost_max: Option<Spanned<Percent>>,
    /// How much longer, in percent, the component may take because of checkpoints, or `"off"`. Beyond it, the interval
    /// grows. Default: 10; no limit with `output = "committed"`.
    #[schemars(with = "Option<PercentLimit>")]
    pub cost_max: Option<Spanned<PercentLimit>>,
    /// The maximum size of the checkpoints in the store, or `"off"`. Beyond it, fewer old checkpoints are kept. Default:
    /// four times the memory of the component, or three times and 64 MiB if that is more.
    #[schemars(with = "Option<SizeLimit>")]
    pub store_max: Option<Spanned<SizeLimit>>,
    /// A shell command that runs after each restore, before the component goes on.
    #[schemars(with = "Option<String>")]
    pub on_restore: Option<Spanned<String>>,
    /// The signal that requests the end of the component: a name like `SIGINT`, or a number. Default: SIGTERM.
    #[serde(default)]
    pub stop_signal: StopSignal,
    /// The time between `stop_signal` and SIGKILL. Default: 10 s.
    pub stop_timeout: Option<Time>,
    /// Further exit codes and signals that count as success, for example `[10, "SIGUSR1"]`. After a success, the
    /// component starts from its beginning.
    #[serde(default)]
    pub success: Vec<SuccessfulEnd>,
}

impl Component {
    /// Reports whether the component is restarted from a checkpoint of its initialised state.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.warm.as_ref().is_some_and(|warm| *warm.get_ref())
    }

    /// Returns the ends that count as success.
    #[must_use]
    pub fn success(&self) -> Success {
        self.success.iter().fold(Success::default(), |own, end| end.added_to(own))
    }

    /// Reports whether `undying` holds the output of the component back until a checkpoint contains the output.
    #[must_use]
    pub fn holds_output(&self) -> bool {
        self.output.as_ref().is_some_and(|output| *output.get_ref() == Output::Committed)
    }
}

/// What a restart of a component does about files that have changed since the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FilesPolicy {
    /// The files are rolled back to the checkpoint.
    Rewind,
    /// The files stay as they are. If any file has changed, the component starts from its beginning.
    Fresh,
    /// Files that have only grown are truncated to their length at the checkpoint. If any other file has changed, the
    /// component starts from its beginning.
    Trim,
    /// The checkpoint is restored, and the files stay as they are.
    Keep,
    /// If any file has changed, the component gives up.
    Refuse,
}

impl From<FilesPolicy> for ChangedFiles {
    fn from(policy: FilesPolicy) -> Self {
        match policy {
            FilesPolicy::Rewind => Self::Rewind,
            FilesPolicy::Fresh => Self::Fresh,
            FilesPolicy::Trim => Self::Trim,
            FilesPolicy::Keep => Self::Keep,
            FilesPolicy::Refuse => Self::Refuse,
        }
    }
}

/// When the output of a component is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    /// Output is sent at once. After a restore, the peer may have received output that the restored component does not
    /// know.
    #[default]
    AtOnce,
    /// Output is sent as soon as a checkpoint that contains the output is durable. Connections continue after a
    /// restore.
    Committed,
}

/// What is done after a death of a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The component is not restarted.
    Never,
    /// The component is started from its beginning.
    #[default]
    Stateless,
    /// The component is restored from its last checkpoint.
    Checkpointed,
}

impl Policy {
    /// Returns the name of the policy in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Stateless => "stateless",
            Self::Checkpointed => "checkpointed",
        }
    }
}

/// The readiness of a component. The table contains exactly one condition, and optionally a timeout.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "ReadyTable")]
#[schemars(with = "ReadyTable")]
pub struct Ready {
    /// The condition.
    pub condition: Condition,
    /// The timeout for readiness; 90 s by default. A component that is not ready in time is killed and restarted.
    pub timeout: Option<Time>,
}

/// The condition for the readiness of a component.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The component sends `READY=1` to the socket in NOTIFY_SOCKET (sd_notify(3)).
    Notify,
    /// The component writes a line to this descriptor, or closes the descriptor.
    Fd(u32),
    /// The output of the component contains a line with this text.
    Log(String),
    /// The component calls listen(2) for the first time.
    Listen,
    /// The probe succeeds.
    Probe(Probe),
}

/// A test of the component from outside. The program does not need to support the test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Probe {
    /// A TCP connection to this address is accepted.
    Tcp(String),
    /// A GET request for this URL returns a status from 200 to 399.
    Http(String),
    /// This program exits with status 0.
    Exec(Vec<String>),
}

/// The check that finds out whether a component hangs. The table contains exactly one method, and the parameters of the
/// check.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "HeartbeatTable")]
#[schemars(with = "HeartbeatTable")]
pub struct Heartbeat {
    /// The probe. `None` means that the component itself sends heartbeats: `WATCHDOG=1` (sd_notify(3)).
    pub probe: Option<Probe>,
    /// The time between two heartbeats or probes.
    pub every: Time,
    /// The number of successive missed heartbeats or failed probes at which the component is killed.
    pub misses: u32,
}

/// The rules for restarts of a component.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Restart {
    /// The maximum number of restarts within a time window. If the component dies when the maximum is reached, the
    /// component gives up.
    pub max: Rate,
    /// The shortest and the longest wait before a restart. The restart after a healthy incarnation does not wait.
    pub backoff: TimeRange,
    /// The factor between two successive waits, at least 1.
    pub factor: f64,
    /// The fraction of a wait, from 0 to 1, that is drawn at random. Without this fraction, several components could
    /// restart at the same moments.
    pub jitter: f64,
    /// The minimum lifetime of a healthy incarnation. The restart after a healthy incarnation does not wait.
    pub healthy: Time,
    /// What is done when the component gives up.
    pub on_give_up: GiveUp,
    /// The program that is run for `on_give_up = "exec"`, with its arguments.
    #[schemars(with = "Option<Vec<String>>")]
    pub exec: Option<Spanned<Vec<String>>>,
}

/// What is done when a component gives up. A component gives up if it was restarted too often, or could not be started
/// or restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GiveUp {
    /// The component is not restarted.
    #[default]
    Stop,
    /// All dependents (the components that need this component) are ended. Then the component is started from its
    /// beginning, and after the component the dependents. If the component gives up again within two windows of `max`,
    /// the component is not restarted.
    RestartDependents,
    /// The whole system is ended and started again. If the component gives up again within two windows of `max`, the
    /// system is ended with a failure.
    Escalate,
    /// The program of `exec` is run, and the component is not restarted.
    Exec,
}

/// The complaints after which a component is restarted. Complaints can come from operators, and from the components
/// that need this component.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Complaints {
    /// The sum of weights at which the component is restarted. Only the heaviest complaint of each complainant counts.
    pub quorum: NonZeroU32,
    /// The time for which a complaint counts.
    pub within: Time,
}

/// The limits above which a component is restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The maximum resident memory of the process tree.
    pub memory: Option<Size>,
    /// The maximum number of open descriptors of one process.
    pub descriptors: Option<u32>,
}

/// The table `ready` as written in the file.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadyTable {
    /// `true` means: the component sends `READY=1` to the socket in NOTIFY_SOCKET (sd_notify(3)).
    notify: Option<bool>,
    /// The component writes a line to this descriptor, or closes the descriptor.
    fd: Option<u32>,
    /// The output of the component contains a line with this text.
    log: Option<String>,
    /// `true` means: the component calls listen(2) for the first time.
    listen: Option<bool>,
    /// A TCP connection to this address is accepted.
    tcp: Option<String>,
    /// A GET request for this URL returns a status from 200 to 399.
    http: Option<String>,
    /// This program exits with status 0.
    exec: Option<Vec<String>>,
    /// The timeout for readiness; 90 s by default. A component that is not ready in time is killed and restarted.
    timeout: Option<Time>,
}

/// The table `heartbeat` as written in the file.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HeartbeatTable {
    /// `true` means: the component sends `WATCHDOG=1` to the socket in NOTIFY_SOCKET (sd_notify(3)).
    notify: Option<bool>,
    /// A TCP connection to this address is accepted.
    tcp: Option<String>,
    /// A GET request for this URL returns a status from 200 to 399.
    http: Option<String>,
    /// This program exits with status 0.
    exec: Option<Vec<String>>,
    /// The time between two heartbeats or probes.
    every: Time,
    /// The number of successive missed heartbeats or failed probes at which the component is killed.
    #[serde(default = "misses")]
    misses: u32,
}

/// Returns the default of `misses`: 2, so that a single late heartbeat on a busy machine does not kill the component.
const fn misses() -> u32 {
    2
}

/// The error for a table in which none or more than one of several keys are present, or a value is impossible.
#[derive(Debug, thiserror::Error)]
pub enum NotOne {
    /// The table contains none of these keys.
    #[error("one of {0} is missing")]
    Missing(&'static str),
    /// The table contains more than one of these keys.
    #[error("only one of {0} is allowed")]
    Several(&'static str),
    /// The descriptor is a standard stream. The pipe for the readiness line would replace this stream, which the
    /// program needs for its input or output.
    #[error(
        "descriptor {0} is a standard stream; write 3 or more, or log = \"TEXT\" for a line of the output"
    )]
    Standard(u32),
}

/// Returns the only value that is present.
fn exactly_one<T>(found: impl IntoIterator<Item = Option<T>>, names: &'static str) -> Result<T, NotOne> {
    let mut found = found.into_iter().flatten();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(NotOne::Missing(names)),
        (Some(_), Some(_)) => Err(NotOne::Several(names)),
    }
}

fn is_set(flag: Option<bool>) -> Option<()> {
    flag.unwrap_or(false).then_some(())
}

impl TryFrom<ReadyTable> for Ready {
    type Error = NotOne;

    fn try_from(table: ReadyTable) -> Result<Self, NotOne> {
        let conditions = [
            is_set(table.notify).map(|()| Condition::Notify),
            table.fd.map(Condition::Fd),
            table.log.map(Condition::Log),
            is_set(table.listen).map(|()| Condition::Listen),
            table.tcp.map(Probe::Tcp).map(Condition::Probe),
            table.http.map(Probe::Http).map(Condition::Probe),
            table.exec.map(Probe::Exec).map(Condition::Probe),
        ];
        let condition = exactly_one(conditions, "notify, fd, log, listen, tcp, http and exec")?;
        if let Condition::Fd(number @ 0..=2) = condition {
            return Err(NotOne::Standard(number));
        }
        Ok(Self { condition, timeout: table.timeout })
    }
}

impl TryFrom<HeartbeatTable> for Heartbeat {
    type Error = NotOne;

    fn try_from(table: HeartbeatTable) -> Result<Self, NotOne> {
        let ways = [
            is_set(table.notify).map(|()| None),
            table.tcp.map(Probe::Tcp).map(Some),
            table.http.map(Probe::Http).map(Some),
            table.exec.map(Probe::Exec).map(Some),
        ];
        let probe = exactly_one(ways, "notify, tcp, http and exec")?;
        Ok(Self { probe, every: table.every, misses: table.misses })
    }
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            max: Rate(const { NonZeroU32::new(5).expect("5 is not zero") }, Duration::from_mins(1)),
            backoff: TimeRange(Duration::from_millis(50), Duration::from_secs(10)),
            factor: 2.0,
            jitter: 0.1,
            healthy: Time(Duration::from_secs(30)),
            on_give_up: GiveUp::Stop,
            exec: None,
        }
    }
}
