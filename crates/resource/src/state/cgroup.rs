//! The control groups of a thread.
//!
//! Owns: putting a thread back into the groups that set it apart from the checkpointer.
//! Invariants: a group the subject shares with the checkpointer, or that stands for a login session, is replaced by
//! the restorer's own. Groups with controllers are joined and never made: limits that went with one are the
//! operator's. A group of a hierarchy without controllers holds nothing but its name, and is made again.
//! Does not: save limits or settings of groups.

use std::fs;
use std::path::{Path, PathBuf};

use model::Pid;
use prost::Message;
use tracee::procfs;

use super::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/cgroup";

/// The kind.
pub(super) struct Cgroup;

#[derive(Clone, PartialEq, Message)]
struct CgroupMessage {
    #[prost(message, repeated, tag = "1")]
    memberships: Vec<Membership>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Membership {
    /// Controllers of the hierarchy as `/proc/PID/cgroup` names them; empty for the unified one.
    #[prost(string, tag = "1")]
    controllers: String,
    /// The group below the root of the hierarchy.
    #[prost(string, tag = "2")]
    path: String,
}

impl StateKind for Cgroup {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "membership in control groups that exist at the restore"
    }

    fn level(&self) -> Level {
        Level::Thread
    }

    fn stage(&self) -> Stage {
        Stage::Setup
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        raw.extend_from_slice(capture.file("cgroup")?);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let own = procfs::read("/proc/self/cgroup")?;
        if raw == own {
            return Ok(None);
        }
        let own = parse(&own);
        let mut memberships = parse(raw);
        memberships.retain(|membership| !own.contains(membership) && !is_login_session(&membership.path));
        Ok((!memberships.is_empty()).then(|| CgroupMessage { memberships }.encode_to_vec()))
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: CgroupMessage = crate::decode(NAME, payload)?;
        let (pid, tid) = (restore.stub.pid(), restore.stub.tid());
        let now = parse(&procfs::read(format!("/proc/{pid}/task/{tid}/cgroup"))?);
        for wanted in message.memberships.iter().filter(|wanted| !now.contains(wanted)) {
            let directory = directory_of(pid, wanted)?;
            let file = match (wanted.controllers.is_empty(), tid == pid.leader()) {
                (true, true) => "cgroup.procs",
                (true, false) => "cgroup.threads",
                (false, _) => "tasks",
            };
            fs::write(directory.join(file), tid.to_string()).map_err(|error| {
                unsupported(
                    pid,
                    wanted,
                    format!("the kernel does not let the restorer move it there: {error}"),
                )
            })?;
        }
        Ok(())
    }
}

/// Lines like `4:memory:/jobs/7`.
fn parse(raw: &[u8]) -> Vec<Membership> {
    let text = String::from_utf8_lossy(raw);
    let membership = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1).map(str::to_owned);
        Some(Membership { controllers: parts.next()?, path: parts.next()? })
    };
    text.lines().filter_map(membership).collect()
}

/// The group that a login manager makes for each session; its number is another one after a reboot.
fn is_login_session(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with("session-") && part.ends_with(".scope"))
}

/// The directory of a group, which exists then.
fn directory_of(pid: Pid, wanted: &Membership) -> Result<PathBuf> {
    let mounts = procfs::read_text("/proc/self/mountinfo")?;
    let directory = mounts.lines().find_map(|line| directory_in(line, wanted)).ok_or_else(|| {
        unsupported(pid, wanted, "its hierarchy is not mounted here, or not from its root".to_owned())
    })?;
    if directory.is_dir() {
        return Ok(directory);
    }
    if wanted.controllers.starts_with("name=") && fs::create_dir_all(&directory).is_ok() {
        return Ok(directory);
    }
    Err(ResourceError::File {
        path: directory.display().to_string(),
        why: format!("the control group of pid {pid} does not exist"),
        fix: "make the group again, with its limits".to_owned(),
    })
}

/// Where a group lies below one line of `/proc/PID/mountinfo`.
fn directory_in(line: &str, wanted: &Membership) -> Option<PathBuf> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut words = file_system.split(' ');
    let kind = words.next()?;
    let options = words.nth(1)?;
    let fits = match wanted.controllers.as_str() {
        "" => kind == "cgroup2",
        controllers => {
            let mut controllers = controllers.split(',');
            kind == "cgroup" && controllers.all(|controller| options.split(',').any(|it| it == controller))
        }
    };
    if !fits || wanted.path.split('/').any(|part| part == "..") {
        return None;
    }
    let mut words = mount.split(' ').skip(3).map(unescape);
    let (root, point) = (words.next()?, words.next()?);
    let below = Path::new(&wanted.path).strip_prefix(&root).ok()?;
    Some(Path::new(&point).join(below))
}

/// Undoes the octal escapes of blanks, tabs, line ends and backslashes.
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
        Membership { controllers: controllers.to_owned(), path: path.to_owned() }
    }

    #[test]
    fn the_kernels_lines_are_understood() {
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
        let at = |line, controllers, path| directory_in(line, &membership(controllers, path));
        assert_eq!(at(first, "cpuacct,cpu", "/a/b"), Some(PathBuf::from("/sys/fs/cgroup/cpu/a/b")));
        assert_eq!(at(first, "memory", "/a"), None);
        assert_eq!(at(first, "cpu", "/../a"), None);
        assert_eq!(at(unified, "", "/pod/c"), Some(PathBuf::from("/sys/fs/my group/c")));
        assert_eq!(at(unified, "", "/other"), None);
    }

    #[test]
    fn login_sessions_are_told_apart() {
        assert!(is_login_session("/user.slice/user-0.slice/session-3.scope"));
        assert!(!is_login_session("/system.slice/redis.service"));
    }
}
