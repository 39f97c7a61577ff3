//! The working directory of a process.
//!
//! Owns: its path, or that it was removed.
//! Invariants: a removed working directory comes back as a removed one, the same for all that had the same.
//! Does not: bring back what the kernel made for something else (a directory of `/proc`, a control group).

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use model::Pid;
use prost::Message;
use rustix::fs::{Mode, OFlags, Stat};
use sys::Error;
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::{ResourceError, Result};
use crate::fd::directory::MADE_UP_FOR_SOMETHING;
use crate::fd::regular;
use crate::obstacle::Obstacle;
use crate::support::nameless::Removed;
use crate::support::path::{self, Name};

const NAME: &str = "state/cwd";
/// In raw state between the link and the message of a removed directory; no path has it.
const END_OF_PATH: u8 = 0;
/// The version that saves a message; the first one saved the bytes of the path alone.
const VERSION: u32 = 2;

#[derive(Clone, PartialEq, Message)]
struct CwdMessage {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// Set when no name leads to it any more.
    #[prost(message, optional, tag = "2")]
    removed: Option<Removed>,
}

/// The kind.
pub(super) struct Cwd;

impl StateKind for Cwd {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn summary(&self) -> &'static str {
        "the working directory, a removed one too"
    }

    fn level(&self) -> Level {
        Level::Process
    }

    fn stage(&self) -> Stage {
        Stage::Setup
    }

    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        let mut found = Vec::new();
        let mut add = |what: &str, place: String, why: &str, fix: &str| {
            let (what, why, fix) = (what.to_owned(), why.to_owned(), fix.to_owned());
            found.push(Obstacle { pid, what, place, why, fix });
        };
        if let Ok((Name::Gone(path), _)) = look(pid)
            && is_made_up(pid)
        {
            add("working directory", path.display().to_string(), MADE_UP_FOR_SOMETHING, CHANGE_IT);
        }
        let (theirs, ours) = (procfs::link(format!("/proc/{pid}/root")), procfs::link("/proc/self/root"));
        if let (Ok(theirs), Ok(ours)) = (theirs, ours)
            && theirs != ours
        {
            let why = "a root directory of the subject's own is not rebuilt yet";
            add(
                "root directory",
                theirs.display().to_string(),
                why,
                "run undying inside the same root (chroot)",
            );
        }
        found
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let pid = capture.pid;
        let (name, stat) = look(pid)?;
        raw.extend_from_slice(&path::to_bytes(name.path()));
        if let Name::Gone(path) = &name {
            if is_made_up(pid) {
                return Err(ResourceError::Unsupported {
                    pid,
                    what: format!("the working directory {}", path.display()),
                    why: MADE_UP_FOR_SOMETHING.to_owned(),
                    fix: CHANGE_IT.to_owned(),
                });
            }
            raw.push(END_OF_PATH);
            raw.extend_from_slice(&Removed::new(path, &stat).encode_to_vec());
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let end = raw.iter().position(|byte| *byte == END_OF_PATH);
        let removed = end.map(|end| crate::decode(NAME, &raw[end + 1..])).transpose()?;
        let path = raw[..end.unwrap_or(raw.len())].to_vec();
        Ok(Some(CwdMessage { path, removed }.encode_to_vec()))
    }

    fn restore(&self, version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message = match version {
            1 => CwdMessage { path: payload.to_vec(), removed: None },
            _ => crate::decode(NAME, payload)?,
        };
        let mut path = match &message.removed {
            None => message.path.clone(),
            Some(removed) => {
                let named = restore.shared.removed_directories.get(removed)?;
                format!("/proc/{}/fd/{}", std::process::id(), named.as_raw_fd()).into_bytes()
            }
        };
        path.push(0);
        let outcome =
            restore.stub.call_with(restore.memory, nr::CHDIR, &path, |at| [at.get(), 0, 0, 0, 0, 0]);
        outcome.map(drop).map_err(|error| ResourceError::File {
            path: String::from_utf8_lossy(&message.path).into_owned(),
            why: format!("the working directory cannot be entered: {error}"),
            fix: "create the directory again".to_owned(),
        })
    }
}

const CHANGE_IT: &str = "let the program change to a directory that exists";

/// The working directory's name and what it is.
fn look(pid: Pid) -> Result<(Name, Stat)> {
    let link = format!("/proc/{pid}/cwd");
    let name = procfs::link(&link)?;
    let stat = rustix::fs::stat(&link).map_err(|errno| Error::path("look at", &link, errno))?;
    Ok((Name::new(name.as_os_str().as_bytes(), &stat), stat))
}

fn is_made_up(pid: Pid) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/{pid}/cwd"), flags, Mode::empty()).is_ok_and(regular::is_made_up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_a_removed_directory_are_told_apart() {
        let payload = Cwd.after(b"/a b").unwrap().unwrap();
        assert_eq!(CwdMessage::decode(payload.as_slice()).unwrap().path, b"/a b");
        let stat = rustix::fs::stat("/").unwrap();
        let removed = Removed::new(std::path::Path::new("/gone"), &stat);
        let raw = [b"/gone\0".to_vec(), removed.encode_to_vec()].concat();
        let message = CwdMessage::decode(Cwd.after(&raw).unwrap().unwrap().as_slice()).unwrap();
        assert_eq!(message, CwdMessage { path: b"/gone".to_vec(), removed: Some(removed) });
    }

    #[test]
    fn our_own_directory_is_found() {
        let ourselves = Pid(std::process::id() as i32);
        let (name, _) = look(ourselves).unwrap();
        assert_eq!(name, Name::Live(std::env::current_dir().unwrap().canonicalize().unwrap()));
        assert!(!is_made_up(ourselves));
    }
}
