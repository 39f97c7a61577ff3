//! Checks whether a checkpoint of a process tree is possible, and which features this kernel and this user provide.
//!
//! Owns: the output of `preflight` and `doctor`.
//! Invariants: a check changes nothing. A probe (the test of a feature) may create a temporary file, which vanishes
//! when it is closed.
//! Does not: find obstacles or probe features; `engine` and `sys` do.

use std::path::{Path, PathBuf};

use engine::CheckpointOptions;
use model::Pid;
use serde::Serialize;
use sys::clone::WantedPid;
use sys::features::{self, Feature, FeatureEntry, Need};

use crate::advice;
use crate::ancestry;
use crate::error::{GuardianError, Result};
use crate::exit::ExitCode;
use crate::location::StoreLocation;
use crate::room::Room;
use crate::streams::{self, Streams};

/// With room for fewer programs, `doctor` advises to raise a limit.
const ROOM_MIN: u64 = 16;

/// The kind of checkpoint for which `preflight` lists obstacles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PreflightMode {
    /// The checkpoint ends the tree (`--kill`).
    pub kill: bool,
    /// The checkpoint accepts the loss of connections to processes outside of the tree (`--lose-connections`).
    pub lose_connections: bool,
}

/// The obstacles to a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PreflightReport {
    /// The kind of checkpoint.
    pub mode: PreflightMode,
    /// Whether there are no obstacles.
    pub ok: bool,
    /// The obstacles.
    pub obstacles: Vec<ObstacleReport>,
    /// Regular files that the tree has open for writing, at most 64. Without a guardian, these files are not watched
    /// and not rolled back. A restore compares these files with the checkpoint.
    pub compared: Vec<String>,
    /// The obstacles as text. Obstacles that differ only in numbers share one string.
    #[serde(skip)]
    pub groups: Vec<String>,
    /// Exit code of the command.
    #[serde(skip)]
    pub code: ExitCode,
}

/// One obstacle to a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct ObstacleReport {
    /// The process that causes the obstacle.
    pub pid: i32,
    pub what: String,
    /// A path, an address range or a peer; may be empty.
    #[serde(rename = "where")]
    pub place: String,
    pub why: String,
    pub fix: String,
}

/// Lists all obstacles to a checkpoint of a tree in one mode. Changes nothing.
///
/// # Errors
///
/// The process does not exist, or this user may not inspect it.
pub fn preflight(pid: Pid, mode: PreflightMode) -> Result<PreflightReport> {
    let options = CheckpointOptions {
        kill: mode.kill,
        lose_connections: mode.lose_connections,
        inherited: Streams::standard()?.identities(),
        ..CheckpointOptions::default()
    };
    // The command `checkpoint` makes the same two checks before it inspects the tree.
    let missing = require_features().and_then(|()| require_restorable()).err();
    let mut obstacles = match ancestry::refuse_kernel_thread(pid) {
        Err(_) => vec![obstacle(
            pid,
            "kernel thread",
            "it runs no program",
            "name the process of a program; `ps -e -o pid,args` shows kernel threads in brackets",
        )],
        Ok(()) => ancestry::name_guardian(engine::preflight(pid, &options)?),
    };
    if ancestry::contains_us(pid) {
        let (why, fix) = (
            "this undying process is in the tree, and cannot stop itself",
            "run undying from outside of the tree",
        );
        let place = format!("pid {}", std::process::id());
        obstacles.insert(0, engine::Obstacle { place, ..obstacle(pid, "this undying", why, fix) });
    }
    obstacles.splice(..0, missing.iter().map(|error| refused(pid, "rights of this user", error)));
    let code = match (&missing, obstacles.is_empty()) {
        (Some(error), _) => error.exit_code(),
        (None, true) => ExitCode::Done,
        (None, false) => ExitCode::Refused,
    };
    let groups = engine::grouped(&obstacles);
    let obstacles: Vec<_> = obstacles.into_iter().map(ObstacleReport::from).collect();
    let compared = streams::files_written_by(pid);
    Ok(PreflightReport { mode, ok: obstacles.is_empty(), obstacles, compared, groups, code })
}

/// Converts an error of the command `checkpoint` to an obstacle.
fn refused(pid: Pid, what: &str, error: &GuardianError) -> engine::Obstacle {
    let text = error.to_string();
    let (why, fix) = text.split_once("\nhelp: ").unwrap_or((&text, ""));
    obstacle(pid, what, why, fix)
}

fn obstacle(pid: Pid, what: &str, why: &str, fix: &str) -> engine::Obstacle {
    let place = String::new();
    engine::Obstacle { pid, what: what.to_owned(), place, why: why.to_owned(), fix: fix.to_owned() }
}

impl From<engine::Obstacle> for ObstacleReport {
    fn from(obstacle: engine::Obstacle) -> Self {
        let engine::Obstacle { pid, what, place, why, fix } = obstacle;
        Self { pid: pid.get(), what, place, why, fix }
    }
}

/// The result of checking all features on this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct DoctorReport {
    pub ok: bool,
    pub checks: Vec<DoctorCheck>,
}

/// The state of a feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// The feature works.
    Ok,
    /// The feature does not work, but there is a fallback.
    Degraded,
    /// The feature does not work, and there is no fallback.
    Missing,
}

/// The check of one feature.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DoctorCheck {
    /// Name of the feature, as in `UNDYING_FEATURES_OFF`.
    pub name: String,
    /// State of the feature.
    pub state: CheckState,
    /// What the check has found.
    pub detail: String,
    /// What the operator can do; empty if the feature works.
    pub fix: String,
}

/// Checks every feature, the store, and the rollback of files.
#[must_use]
pub fn doctor(location: &StoreLocation) -> DoctorReport {
    let directory = existing(location.path());
    let mut checks: Vec<DoctorCheck> =
        features::REGISTRY.iter().map(|entry| check(entry, &directory)).collect();
    checks.push(check_store(location, &directory));
    checks.push(check_files());
    checks.extend(check_room(Room::here()));
    DoctorReport { ok: checks.iter().all(|check| check.state != CheckState::Missing), checks }
}

/// Fails if `UNDYING_FEATURES_OFF` disables a feature without fallback. A feature that the kernel lacks is detected
/// later, when the feature is used.
pub(crate) fn require_features() -> Result<()> {
    let missing = features::REGISTRY
        .iter()
        .find(|entry| entry.need == Need::Required && !features::enabled(entry.feature));
    match missing {
        Some(entry) => Err(GuardianError::FeatureMissing {
            name: entry.name(),
            purpose: entry.purpose,
            fix: "remove the feature from UNDYING_FEATURES_OFF",
        }),
        None => Ok(()),
    }
}

pub(crate) fn missing(feature: Feature) -> GuardianError {
    let entry = features::entry(feature);
    GuardianError::FeatureMissing { name: entry.name(), purpose: entry.purpose, fix: entry.fix }
}

/// Refuses a checkpoint that this user could not restore. A restore chooses the pids of processes, and needs a
/// capability for this. The test tries to create a process with our own pid. This pid is in use, so no process is
/// created.
pub(crate) fn require_restorable() -> Result<()> {
    let own = Pid(std::process::id() as i32);
    match sys::clone::spawn_waiting(WantedPid::Exactly(own)) {
        Err(error) if error.errno == sys::Errno::EPERM => Err(GuardianError::NoRightToRestore),
        _ => Ok(()),
    }
}

fn check(entry: &FeatureEntry, directory: &Path) -> DoctorCheck {
    let without = match entry.need {
        Need::Required => CheckState::Missing,
        Need::Optional => CheckState::Degraded,
    };
    let found = if features::enabled(entry.feature) {
        (entry.probe)(directory).map_err(|error| (error.to_string(), entry.fix_after(error.errno)))
    } else {
        let fix = "remove the feature from UNDYING_FEATURES_OFF";
        Err(("forced off by UNDYING_FEATURES_OFF".to_owned(), fix))
    };
    let found = match found {
        Ok(detail) => Ok(format!("{}: {detail}", entry.purpose)),
        Err((detail, fix)) => Err((without, format!("{}: {detail}", entry.purpose), fix)),
    };
    DoctorCheck::of(entry.name(), found)
}

impl DoctorCheck {
    /// Builds the check `name`. `found` is the detail of a working feature, or the state, the detail and the advice of
    /// a feature that does not work.
    fn of(name: &str, found: std::result::Result<String, (CheckState, String, &str)>) -> Self {
        let (state, detail, fix) = found.map_or_else(|lack| lack, |detail| (CheckState::Ok, detail, ""));
        let fix = advice::unmet(fix, &rustix::system::uname().release().to_string_lossy());
        Self { name: name.to_owned(), state, detail, fix }
    }
}

fn check_store(location: &StoreLocation, directory: &Path) -> DoctorCheck {
    use rustix::fs::{Access, access};
    let writable = access(directory, Access::WRITE_OK | Access::EXEC_OK);
    let problem = match (location.open(), writable) {
        (Err(error), _) => Some(error.to_string()),
        (_, Err(errno)) => Some(sys::Error::path("write to", directory, errno).to_string()),
        _ => None,
    };
    let fix = "name a directory of this user's own with --store DIR";
    DoctorCheck::of(
        "store",
        match problem {
            Some(detail) => Err((CheckState::Missing, detail.replace('\n', "; "), fix)),
            None => Ok(format!("images live in {}", location.path().display())),
        },
    )
}

/// Checks how many programs a guardian can protect.
fn check_room(room: Room) -> [DoctorCheck; 2] {
    let judged = |room: Option<u64>, limit: Option<u64>, what: &str, fix| match room.zip(limit) {
        None => Ok(format!("{what} any number of programs: the kernel sets no limit")),
        Some((room, limit)) => {
            let detail = format!("{what} about {room} programs: the limit is {limit}");
            if room < ROOM_MIN { Err((CheckState::Degraded, detail, fix)) } else { Ok(detail) }
        }
    };
    let descriptors = judged(
        room.programs(),
        room.descriptors,
        "a guardian has descriptors for",
        "raise the hard limit of open files (`ulimit -Hn`, or LimitNOFILE= of a service)",
    );
    let groups = judged(
        room.rolled_back(),
        room.groups,
        "all guardians of this user can roll back files of",
        "raise fs.fanotify.max_user_groups (sysctl)",
    );
    [DoctorCheck::of("descriptors", descriptors), DoctorCheck::of("file-groups", groups)]
}

/// Checks whether the files of a program under `run` can be rolled back with the program.
fn check_files() -> DoctorCheck {
    let fix = "run undying as root on Linux 6.14 or later, with files on ext4, xfs or btrfs";
    DoctorCheck::of(
        "files-go-back",
        match undo::watch::Watch::missing() {
            None => Ok("files of a program under `undying run` are rolled back with it".to_owned()),
            Some(why) => {
                let detail = format!("files are compared at a restart, and are not rolled back: {why}");
                Err((CheckState::Degraded, detail, fix))
            }
        },
    )
}

/// Returns the directory, or its nearest existing ancestor.
fn existing(path: &Path) -> PathBuf {
    let found = path.ancestors().find(|path| path.is_dir());
    found.map_or_else(|| PathBuf::from("/"), Path::to_path_buf)
}
