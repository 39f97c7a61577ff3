//! The state kind of the working directory of a process.
//!
//! Owns: the path of the working directory, or the fact that the directory was removed.
//! Invariants: if the path leads to another directory, the process enters that directory only with its own rights. A
//! removed directory is restored as a removed directory. Processes that shared a removed directory share the restored
//! directory.
//! Does not: restore directories that the kernel creates for another object (in `/proc`, a control group).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use model::Pid;
use prost::Message;
use rustix::fs::{Mode, OFlags, Stat};
use sys::Error;
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};
use crate::fd::directory::OF_REMOVED_KERNEL_OBJECT;
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::support::file_system;
use crate::support::identity::Identity;
use crate::support::nameless::Removed;
use crate::support::path::{self, Name};

const NAME: &str = "state/cwd";
const LINK: &str = "cwd";
/// The separator in raw state between the path and the encoded [`RawMessage`]. No path contains this byte.
const END_OF_PATH: u8 = 0;
/// The payload version. Version 2 is a message; version 1 was the bytes of the path alone.
const VERSION: u32 = 2;

#[derive(Clone, PartialEq, Message)]
struct CwdMessage {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// Set if the directory has no name any more.
    #[prost(message, optional, tag = "2")]
    removed: Option<Removed>,
    /// The identity of the directory; `None` in images of earlier versions.
    #[prost(message, optional, tag = "3")]
    identity: Option<Identity>,
}

/// The part of raw state behind the path.
#[derive(Clone, PartialEq, Message)]
struct RawMessage {
    #[prost(message, optional, tag = "1")]
    removed: Option<Removed>,
    #[prost(message, optional, tag = "2")]
    identity: Option<Identity>,
}

/// The state kind of the working directory.
pub(super) struct Cwd;

impl StateKind for Cwd {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Process, stage: Stage::Setup }
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        let mut found = Vec::new();
        let mut add = |what: &str, place: String, why: &str, fix: &str| {
            let (what, why, fix) = (what.to_owned(), why.to_owned(), fix.to_owned());
            found.push(Obstacle { pid, what, place, why, fix });
        };
        if let Ok((Name::Gone(path), ..)) = inspect(pid, LINK)
            && is_pseudo(pid)
        {
            add("working directory", path.display().to_string(), OF_REMOVED_KERNEL_OBJECT, CHANGE_IT);
        }
        found
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let pid = capture.pid;
        let (name, stat, directory) = inspect(pid, LINK)?;
        raw.extend_from_slice(&path::to_bytes(name.path()));
        let mut rest = RawMessage { removed: None, identity: Some(Identity::with(&directory, &stat)) };
        if let Name::Gone(path) = &name {
            if is_pseudo(pid) {
                return Err(ResourceError::Unsupported {
                    pid,
                    what: format!("the working directory {}", path.display()),
                    why: OF_REMOVED_KERNEL_OBJECT.to_owned(),
                    fix: CHANGE_IT.to_owned(),
                });
            }
            rest.removed = Some(Removed::new(path, &stat));
        }
        raw.push(END_OF_PATH);
        raw.extend_from_slice(&rest.encode_to_vec());
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let end = raw.iter().position(|byte| *byte == END_OF_PATH).unwrap_or(raw.len());
        let (path, rest) = raw.split_at(end);
        let RawMessage { removed, identity } = crate::error::decode(NAME, rest.get(1..).unwrap_or_default())?;
        Ok(Some(CwdMessage { path: path.to_vec(), removed, identity }.encode_to_vec()))
    }

    fn check(&self, version: u32, payload: &[u8]) -> Result<()> {
        decoded(version, payload).map(drop)
    }

    fn restore(&self, version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message = decoded(version, payload)?;
        let found;
        let directory = match &message.removed {
            None => {
                found = find(&message, restore.opener)?;
                found.as_fd()
            }
            Some(removed) => restore.shared.removed_directories.get(removed)?.as_fd(),
        };
        // Processes that share the working directory (CLONE_FS) enter it only once. If they also share another root
        // directory, the path in /proc leads nowhere for the second process.
        if is_there(restore.stub.pid(), directory)? {
            return Ok(());
        }
        let mut path = format!("/proc/{}/fd/{}", std::process::id(), directory.as_raw_fd()).into_bytes();
        path.push(0);
        let outcome =
            restore.stub.call_with(restore.memory, nr::CHDIR, &path, |at| [at.get(), 0, 0, 0, 0, 0]);
        outcome.map(drop).map_err(|error| ResourceError::File {
            path: String::from_utf8_lossy(&message.path).into_owned(),
            why: format!("the working directory cannot be entered: {error}"),
            fix: "create the directory, then restore again".to_owned(),
        })
    }
}

/// Reports whether the working directory of a process is this directory, reached through the same mount.
fn is_there(pid: Pid, directory: BorrowedFd<'_>) -> Result<bool> {
    let wanted = procfs::link(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    if procfs::link(format!("/proc/{pid}/{LINK}"))? != wanted {
        return Ok(false);
    }
    let numbers = |stat: Stat| (stat.st_dev, stat.st_ino);
    let stat = rustix::fs::fstat(directory).map_err(|errno| Error::new("inspect a directory", errno))?;
    let (_, now, _) = inspect(pid, LINK)?;
    Ok(numbers(now) == numbers(stat))
}

fn decoded(version: u32, payload: &[u8]) -> Result<CwdMessage> {
    match version {
        1 => Ok(CwdMessage { path: payload.to_vec(), removed: None, identity: None }),
        _ => crate::error::decode(NAME, payload),
    }
}

const CHANGE_IT: &str = "let the program change to a directory that exists";

/// Finds the directory of a record. Another directory at the path is used only if the program has search permission.
fn find(message: &CwdMessage, opener: &Opener) -> Result<OwnedFd> {
    let path = path::from_bytes(&message.path);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = opener.find(&path, message.identity).and_then(|found| {
        let named = found.open(flags)?;
        found.act(|link| rustix::fs::open(format!("{link}/."), flags, Mode::empty()).map(drop))?;
        Ok(named)
    });
    found.map_err(|refusal| {
        refusal.of(
            &path,
            "it was the program's working directory",
            "create the directory, then restore again",
        )
    })
}

/// Returns the name and the stat of a directory that a link of `/proc/PID` leads to, and an O_PATH descriptor of the
/// directory.
pub(super) fn inspect(pid: Pid, link: &str) -> Result<(Name, Stat, OwnedFd)> {
    let link = format!("/proc/{pid}/{link}");
    let name = procfs::link(&link)?;
    let failed = |errno| Error::path("inspect", &link, errno);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&link, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&directory).map_err(failed)?;
    Ok((Name::new(name.as_os_str().as_bytes(), &stat), stat, directory))
}

fn is_pseudo(pid: Pid) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/{pid}/cwd"), flags, Mode::empty()).is_ok_and(file_system::is_pseudo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_a_removed_directory_are_distinguished() {
        let payload = Cwd.after(b"/a b").unwrap().unwrap();
        assert_eq!(CwdMessage::decode(payload.as_slice()).unwrap().path, b"/a b");
        let stat = rustix::fs::stat("/").unwrap();
        let removed = Removed::new(std::path::Path::new("/gone"), &stat);
        let identity = Some(Identity::of(std::fs::File::open("/").unwrap()).unwrap());
        let rest = RawMessage { removed: Some(removed.clone()), identity };
        let raw = [b"/gone\0".to_vec(), rest.encode_to_vec()].concat();
        let message = CwdMessage::decode(Cwd.after(&raw).unwrap().unwrap().as_slice()).unwrap();
        assert_eq!(message, CwdMessage { path: b"/gone".to_vec(), removed: Some(removed), identity });
    }

    #[test]
    fn our_own_directory_is_found() {
        let ourselves = Pid(std::process::id() as i32);
        let (name, ..) = inspect(ourselves, LINK).unwrap();
        assert_eq!(name, Name::Live(std::env::current_dir().unwrap().canonicalize().unwrap()));
        assert!(!is_pseudo(ourselves));
    }
}
