//! The state kind of control groups: saves and restores the memberships of a thread.
//!
//! Owns: moving a restored thread back into its recorded groups.
//! Invariants: a group that the thread shared with the process that took the checkpoint is not recorded. The group of
//! a login session is not recorded either. In place of such a group, the restored thread has the group of the
//! restoring process. A group with controllers is joined and never created, because its limits belong to the operator.
//! A missing group of a hierarchy without controllers is created again, with the groups above and below the group.
//! Missing groups are created before any other object is restored, because the program may have their directories
//! open.
//! Does not: save limits or settings of groups with controllers.

mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use model::{Pid, Tid};
use prost::Message;
use tracee::procfs;

use self::tree::{Failure, Group};
use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;

const NAME: &str = "state/cgroup";
/// The separator in raw state. The lines of the kernel precede the separator, and the memberships with groups follow
/// the separator. No group name contains this byte.
const END_OF_LINES: u8 = 0;

/// The state kind of control groups.
pub(super) struct Cgroup;

#[derive(Clone, PartialEq, Message)]
struct CgroupMessage {
    #[prost(message, repeated, tag = "1")]
    memberships: Vec<Membership>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Membership {
    /// The controllers of the hierarchy, as in `/proc/PID/cgroup`; empty for the unified hierarchy.
    #[prost(string, tag = "1")]
    controllers: String,
    /// The path of the group, relative to the root of the hierarchy.
    #[prost(string, tag = "2")]
    path: String,
    /// The group, with the groups above and below the group, outermost first. Empty for hierarchies with controllers.
    #[prost(message, repeated, tag = "3")]
    groups: Vec<Group>,
}

impl Membership {
    fn is_same(&self, other: &Self) -> bool {
        (&self.controllers, &self.path) == (&other.controllers, &other.path)
    }

    /// Reports whether the group can be created again. The hierarchy must have no controllers, and the group must not
    /// be the root or a login session.
    fn can_be_made(&self) -> bool {
        self.controllers.starts_with("name=") && self.path != "/" && !is_login_session(&self.path)
    }
}

impl StateKind for Cgroup {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Setup }
    }

    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        let Ok(raw) = procfs::read(format!("/proc/{pid}/cgroup")) else { return Vec::new() };
        match own_groups(pid, pid.leader(), &raw) {
            Err(ResourceError::Unsupported { what, why, fix, .. }) => {
                vec![Obstacle { pid, what, place: String::new(), why, fix }]
            }
            _ => Vec::new(),
        }
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        raw.extend_from_slice(capture.file("cgroup")?);
        let memberships = own_groups(capture.pid, capture.tid, raw)?;
        if !memberships.is_empty() {
            raw.push(END_OF_LINES);
            raw.extend_from_slice(&CgroupMessage { memberships }.encode_to_vec());
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let (lines, with_groups) = match raw.iter().position(|byte| *byte == END_OF_LINES) {
            Some(end) => (&raw[..end], crate::error::decode(NAME, &raw[end + 1..])?),
            None => (raw, CgroupMessage::default()),
        };
        let own = procfs::read("/proc/self/cgroup")?;
        if lines == own {
            return Ok(None);
        }
        let own = parse(&own);
        let mut memberships = parse(lines);
        memberships.retain(|membership| !own.contains(membership) && !is_login_session(&membership.path));
        for membership in &mut memberships {
            let found = with_groups.memberships.iter().find(|one| one.is_same(membership));
            membership.groups = found.map(|one| one.groups.clone()).unwrap_or_default();
        }
        Ok((!memberships.is_empty()).then(|| CgroupMessage { memberships }.encode_to_vec()))
    }

    fn prepare(&self, payloads: &[(Pid, u32, &[u8])]) -> Result<()> {
        let mut missing = Vec::new();
        for (pid, _version, payload) in payloads {
            let message: CgroupMessage = crate::error::decode(NAME, payload)?;
            for membership in message.memberships.into_iter().filter(|one| !one.groups.is_empty()) {
                // All groups are inspected before the first group is created, because one group may be inside another
                // group.
                if mounted_at(&membership)?.is_some_and(|directory| !directory.is_dir()) {
                    missing.push((*pid, membership));
                }
            }
        }
        missing.iter().try_for_each(|(pid, membership)| make(*pid, membership))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<CgroupMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: CgroupMessage = crate::error::decode(NAME, payload)?;
        let (pid, tid) = (restore.stub.pid(), restore.stub.tid());
        let now = parse(&of_thread(pid, tid)?);
        for wanted in message.memberships.iter().filter(|wanted| !now.iter().any(|one| one.is_same(wanted))) {
            let directory = directory_of(pid, wanted)?;
            let file = match (wanted.controllers.is_empty(), tid == pid.leader()) {
                (true, true) => "cgroup.procs",
                (true, false) => "cgroup.threads",
                (false, _) => "tasks",
            };
            fs::write(directory.join(file), tid.to_string()).map_err(|error| {
                unsupported(pid, wanted, format!("the kernel refuses to move thread {tid} there: {error}"))
            })?;
        }
        Ok(())
    }
}

fn of_thread(pid: Pid, tid: Tid) -> Result<Vec<u8>> {
    Ok(procfs::read(format!("/proc/{pid}/task/{tid}/cgroup"))?)
}

/// Returns the memberships in groups that can be created again and that this process is not in. Each membership
/// contains its groups. The record of a thread omits memberships that the leader of the process also has.
fn own_groups(pid: Pid, tid: Tid, lines: &[u8]) -> Result<Vec<Membership>> {
    let mut found = parse(lines);
    found.retain(Membership::can_be_made);
    if found.is_empty() {
        return Ok(found);
    }
    let mut known = parse(&procfs::read("/proc/self/cgroup")?);
    if tid != pid.leader() {
        known.extend(parse(&of_thread(pid, pid.leader())?));
    }
    found.retain(|membership| !known.contains(membership));
    let mounts = procfs::read_text("/proc/self/mountinfo")?;
    for membership in &mut found {
        let controllers = membership.controllers.clone();
        let place = |path: &str| place_in(&mounts, &controllers, path);
        membership.groups = match tree::save(&membership.path, place) {
            Ok(groups) => groups,
            Err(Failure::Kernel(error)) => return Err(error.into()),
            Err(Failure::TooMany) => return Err(too_many(pid, membership)),
        };
    }
    Ok(found)
}

fn too_many(pid: Pid, membership: &Membership) -> ResourceError {
    ResourceError::Unsupported {
        pid,
        what: format!("the control group {} ({})", membership.path, membership.controllers),
        why: format!("more than {} groups are below it", tree::BELOW_MAX),
        fix: "let the program remove the groups it no longer needs".to_owned(),
    }
}

/// Creates the group, missing groups above the group, and the groups below the group.
fn make(pid: Pid, membership: &Membership) -> Result<()> {
    let mounts = procfs::read_text("/proc/self/mountinfo")?;
    for group in &membership.groups {
        let Some(directory) = place_in(&mounts, &membership.controllers, &group.path) else { continue };
        if directory.is_dir() {
            continue;
        }
        group.make(&directory).map_err(|error| {
            unsupported(pid, membership, format!("{} cannot be created: {error}", directory.display()))
        })?;
    }
    Ok(())
}

/// Parses lines such as `4:memory:/jobs/7`.
fn parse(raw: &[u8]) -> Vec<Membership> {
    let text = String::from_utf8_lossy(raw);
    let membership = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1).map(str::to_owned);
        Some(Membership { controllers: parts.next()?, path: parts.next()?, groups: Vec::new() })
    };
    text.lines().filter_map(membership).collect()
}

/// Reports whether a login manager created the group for one session. The id of the session differs after a reboot.
fn is_login_session(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with("session-") && part.ends_with(".scope"))
}

/// Returns the directory of a group. Returns an error if the directory does not exist.
fn directory_of(pid: Pid, wanted: &Membership) -> Result<PathBuf> {
    let directory = mounted_at(wanted)?.ok_or_else(|| {
        unsupported(pid, wanted, "its hierarchy is not mounted, or is mounted without its root".to_owned())
    })?;
    if directory.is_dir() {
        return Ok(directory);
    }
    Err(ResourceError::File {
        path: directory.display().to_string(),
        why: format!("the control group of pid {pid} does not exist"),
        fix: "create the group with its limits (mkdir), then restore again".to_owned(),
    })
}

/// Returns the directory of a group, which need not exist. Returns `None` if the hierarchy is not mounted.
fn mounted_at(wanted: &Membership) -> Result<Option<PathBuf>> {
    let mounts = procfs::read_text("/proc/self/mountinfo")?;
    Ok(place_in(&mounts, &wanted.controllers, &wanted.path))
}

fn place_in(mounts: &str, controllers: &str, path: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| directory_in(line, controllers, path))
}

/// Returns the directory of a group below the mount that one line of `/proc/PID/mountinfo` describes.
fn directory_in(line: &str, controllers: &str, path: &str) -> Option<PathBuf> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut words = file_system.split(' ');
    let kind = words.next()?;
    let options = words.nth(1)?;
    let fits = match controllers {
        "" => kind == "cgroup2",
        controllers => {
            let mut controllers = controllers.split(',');
            kind == "cgroup" && controllers.all(|controller| options.split(',').any(|it| it == controller))
        }
    };
    if !fits || path.split('/').any(|part| part == "..") {
        return None;
    }
    let mut words = mount.split(' ').skip(3).map(unescape);
    let (root, point) = (words.next()?, words.next()?);
    let below = Path::new(path).strip_prefix(&root).ok()?;
    Some(Path::new(&point).join(below))
}

/// Decodes the octal escapes of spaces, tabs, newlines and backslashes.
fn unescape(word: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(word.to_owned(), |word, (escape, character)| word.replace(escape, character))
}

fn unsupported(pid: Pid, wanted: &Membership, why: String) -> ResourceError {
    let hierarchy = if wanted.controllers.is_empty() { "unified" } else { &wanted.controllers };
    ResourceError::Unsupported {
        pid,
        what: format!("the control group {} ({hierarchy})", wanted.path),
        why,
        fix: "restore as root where the control groups are mounted".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(controllers: &str, path: &str) -> Membership {
        Membership { controllers: controllers.to_owned(), path: path.to_owned(), groups: Vec::new() }
    }

    #[test]
    fn the_kernels_lines_are_parsed() {
        let found = parse(b"4:cpu,cpuacct:/a:b\n1:name=systemd:/x\n0::/\n");
        let expected =
            [membership("cpu,cpuacct", "/a:b"), membership("name=systemd", "/x"), membership("", "/")];
        assert_eq!(found, expected);
        assert!(!parse(&std::fs::read("/proc/self/cgroup").unwrap()).iter().any(|it| it.path.is_empty()));
    }

    #[test]
    fn groups_are_found_below_their_mounts() {
        let first = "33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct";
        let unified = "41 31 0:38 /pod /sys/fs/my\\040group rw - cgroup2 cgroup2 rw";
        let at = directory_in;
        assert_eq!(at(first, "cpuacct,cpu", "/a/b"), Some(PathBuf::from("/sys/fs/cgroup/cpu/a/b")));
        assert_eq!(at(first, "memory", "/a"), None);
        assert_eq!(at(first, "cpu", "/../a"), None);
        assert_eq!(at(unified, "", "/pod/c"), Some(PathBuf::from("/sys/fs/my group/c")));
        assert_eq!(at(unified, "", "/other"), None);
    }

    #[test]
    fn login_sessions_are_recognized() {
        assert!(is_login_session("/user.slice/user-0.slice/session-3.scope"));
        assert!(!is_login_session("/system.slice/redis.service"));
    }
}
