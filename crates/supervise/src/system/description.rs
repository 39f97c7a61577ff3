//! The keys of `system.toml`, and their defaults.
//!
//! Owns: the types that the file is read into; the tables of which exactly one of several keys must be there.
//! Does not: compare components; `checks` does.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use super::values::{Rate, Size, Time, TimeRange};

/// A system.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// What concerns all components.
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

/// What concerns all components.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Common {
    /// The name of the system.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// Where checkpoints are kept. Without it, the store that `--store` names.
    pub store: Option<PathBuf>,
}

/// A program that is kept running.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Component {
    /// The program and its arguments. No shell reads them.
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub command: Spanned<Vec<String>>,
    /// What follows its death.
    #[serde(default)]
    pub policy: Policy,
    /// The time from one checkpoint to the next, of `policy = "checkpointed"`.
    #[schemars(with = "Option<Time>")]
    pub every: Option<Spanned<Time>>,
    /// Components that are ready before this one is started.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub needs: Vec<Spanned<String>>,
    /// Addresses that it connects to, each behind the name of the component that listens there. Only needed for an
    /// address that the `ready` of that component does not have: calls wait until it is ready, from its first start
    /// on.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub channels: BTreeMap<Spanned<String>, Spanned<String>>,
    /// When it is ready: without it, as soon as it was started.
    pub ready: Option<Ready>,
    /// How it shows that it does not hang.
    pub heartbeat: Option<Heartbeat>,
    /// How it is restarted.
    #[serde(default)]
    pub restart: Restart,
    /// How many complaints restart it. Without it, a sum of 2 within a minute.
    pub complaints: Option<Complaints>,
    /// The time in which all of its executable pages are compared with their files.
    pub integrity: Option<Time>,
    /// The user that it runs as, by name or number. Without it, the user of undying.
    pub user: Option<String>,
    /// Variables of its environment, beside those of undying.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Its working directory. Without it, the directory of the system file.
    pub directory: Option<PathBuf>,
    /// Bounds above which it is restarted.
    pub limits: Option<Limits>,
    /// The file that its standard output and standard error are appended to. Without it, those of undying.
    pub log: Option<PathBuf>,
    /// Whether a stateless component is started again from a checkpoint that was taken once it was ready.
    #[schemars(with = "bool")]
    pub warm: Option<Spanned<bool>>,
    /// When what a checkpointed component sends over TCP goes out. Without it, at once.
    #[schemars(with = "Output")]
    pub output: Option<Spanned<Output>>,
}

impl Component {
    /// Whether it is started again from a checkpoint of its initialised state.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.warm.as_ref().is_some_and(|warm| *warm.get_ref())
    }

    /// Whether its output is held until a checkpoint contains it.
    #[must_use]
    pub fn holds_output(&self) -> bool {
        self.output.as_ref().is_some_and(|output| *output.get_ref() == Output::Committed)
    }
}

/// When what a component sends goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    /// At once. A peer may then have received output that a restored component has not sent.
    #[default]
    AtOnce,
    /// When a checkpoint contains it: its connections continue after a restore.
    Committed,
}

/// What follows the death of a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// It stays dead.
    Never,
    /// It is started from its beginning.
    #[default]
    Stateless,
    /// It is restored from its last checkpoint.
    Checkpointed,
}

impl Policy {
    /// Its name in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Stateless => "stateless",
            Self::Checkpointed => "checkpointed",
        }
    }
}

/// When a component is ready. Exactly one condition, and how long it may take.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "ReadyTable")]
#[schemars(with = "ReadyTable")]
pub struct Ready {
    /// The condition.
    pub condition: Condition,
    /// How long it may take; 90 s without it. A component that is not ready by then is killed and restarted.
    pub timeout: Option<Time>,
}

/// The condition for readiness.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// It sends `READY=1` to the socket that NOTIFY_SOCKET names (sd_notify(3)).
    Notify,
    /// It writes a line to this descriptor, or closes it.
    Fd(u32),
    /// Its output has a line that contains this text.
    Log(String),
    /// It has called listen(2) for the first time.
    Listen,
    /// A probe succeeds.
    Probe(Probe),
}

/// A question from outside, which needs no help from the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Probe {
    /// A connection to this address is accepted.
    Tcp(String),
    /// A GET of this URL is answered with a status of 200 to 399.
    Http(String),
    /// This program ends with status 0.
    Exec(Vec<String>),
}

/// How a component shows that it does not hang. Exactly one of the ways, and its times.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "HeartbeatTable")]
#[schemars(with = "HeartbeatTable")]
pub struct Heartbeat {
    /// A probe; without one, the component sends `WATCHDOG=1` (sd_notify(3)).
    pub probe: Option<Probe>,
    /// From one beat to the next.
    pub every: Time,
    /// How many in a row may be missed.
    pub misses: u32,
}

/// How a component is restarted.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Restart {
    /// Restarts in a time: one more, and it is given up.
    pub max: Rate,
    /// The wait before a restart: the shortest, and the longest. The first restart after a healthy time does not wait.
    pub backoff: TimeRange,
    /// How many times as long as the wait before each wait is; 1 at least.
    pub factor: f64,
    /// The random part of a wait, 0 to 1, so that components are not restarted in step.
    pub jitter: f64,
    /// The next restart does not wait if a component was up for this time.
    pub healthy: Time,
    /// What follows when it is given up.
    pub on_give_up: GiveUp,
    /// The program that `on_give_up = "exec"` runs.
    #[schemars(with = "Option<Vec<String>>")]
    pub exec: Option<Spanned<Vec<String>>>,
}

/// What follows when a component was restarted too often, or cannot be brought back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GiveUp {
    /// It stays dead.
    #[default]
    Stop,
    /// The components that cannot run without it are ended. Then it is started from its beginning, and they are. If it
    /// is given up again within two windows of `max`, it stays dead.
    RestartDependents,
    /// The whole system is ended and started again. If a component is given up again within two windows of `max`, the
    /// system is ended for good, with a failure.
    Escalate,
    /// The program of `exec` is run. The component stays dead.
    Exec,
}

/// How many complaints about a component restart it (an operator's, or those of its dependents).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Complaints {
    /// The sum of their weights. A complainant counts once, with its heaviest complaint.
    pub quorum: NonZeroU32,
    /// The time in which they come.
    pub within: Time,
}

/// Bounds above which a component is restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Resident memory of the process tree.
    pub memory: Option<Size>,
    /// Open descriptors of one process.
    pub descriptors: Option<u32>,
}

/// Components that share a fate.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The components.
    #[schemars(with = "Vec<String>", length(min = 2))]
    pub members: Spanned<Vec<Spanned<String>>>,
    /// Which members are restarted when one has died.
    #[serde(default)]
    pub strategy: Strategy,
    /// Whether they are checkpointed at one moment and restored together.
    #[serde(default)]
    pub together: bool,
}

/// Which members of a group are restarted when one has died.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// That one.
    #[default]
    One,
    /// That one, and those behind it in the list of members.
    Rest,
    /// All of them.
    All,
}

/// `ready` as it is written.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadyTable {
    /// `true`: the component sends `READY=1` to the socket that NOTIFY_SOCKET names (sd_notify(3)).
    notify: Option<bool>,
    /// It writes a line to this descriptor, or closes it.
    fd: Option<u32>,
    /// Its output has a line that contains this text.
    log: Option<String>,
    /// `true`: it has called listen(2) for the first time.
    listen: Option<bool>,
    /// A connection to this address is accepted.
    tcp: Option<String>,
    /// A GET of this URL is answered with a status of 200 to 399.
    http: Option<String>,
    /// This program ends with status 0.
    exec: Option<Vec<String>>,
    /// How long it may take; 90 s without it. A component that is not ready by then is killed and restarted.
    timeout: Option<Time>,
}

/// `heartbeat` as it is written.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HeartbeatTable {
    /// `true`: the component sends `WATCHDOG=1` to the socket that NOTIFY_SOCKET names (sd_notify(3)).
    notify: Option<bool>,
    /// A connection to this address is accepted.
    tcp: Option<String>,
    /// A GET of this URL is answered with a status of 200 to 399.
    http: Option<String>,
    /// This program ends with status 0.
    exec: Option<Vec<String>>,
    /// From one beat to the next.
    every: Time,
    /// How many in a row may be missed.
    #[serde(default = "misses")]
    misses: u32,
}

/// One beat may be late on a busy machine.
const fn misses() -> u32 {
    2
}

/// Why a table does not have exactly one of some keys, or has an impossible value.
#[derive(Debug, thiserror::Error)]
pub enum NotOne {
    /// None of these is there.
    #[error("one of {0} is missing")]
    Missing(&'static str),
    /// More than one of these.
    #[error("only one of {0} can be there")]
    Several(&'static str),
    /// The pipe would take the place of a stream that the program writes to later.
    #[error(
        "descriptor {0} is a standard stream; write 3 or more, or log = \"TEXT\" for a line of the output"
    )]
    Standard(u32),
}

/// The only value that is given.
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
