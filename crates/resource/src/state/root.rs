//! The state kind of the root directory of a process (chroot(2)).
//!
//! Owns: the path and the identity of the root directory. A process with the root directory of `undying` has no record.
//! Invariants: a process gets only the directory that was its root directory at the checkpoint, wherever its path leads
//! now. In another directory, a user could provide the files that a set-user-ID program of the tree trusts.
//! Does not: restore mount namespaces, or a root directory that no path leads to.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use model::Pid;
use prost::Message;
use sys::Error;
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::cwd;
use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::support::finding::Handle;
use crate::support::identity::Identity;
use crate::support::path::{self, Name};

const NAME: &str = "state/root";
const LINK: &str = "root";
const UNREACHABLE: &str = "no path of undying's own root directory leads to this directory";
const ENTER_IT: &str = "run undying inside the same root directory";

#[derive(Clone, PartialEq, Message)]
struct RootMessage {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    identity: Option<Identity>,
    /// The handle, through which a renamed directory is found.
    #[prost(message, optional, tag = "3")]
    handle: Option<Handle>,
}

/// The state kind of the root directory.
pub(super) struct Root;

impl StateKind for Root {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Process, stage: Stage::Setup }
    }

    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        // A process that has ended meanwhile has no obstacles.
        let Ok(Some(message)) = inspect(pid) else { return Vec::new() };
        let path = path::from_bytes(&message.path);
        if find(&message, &Opener::default()).is_ok() {
            return Vec::new();
        }
        vec![Obstacle {
            pid,
            what: "root directory".to_owned(),
            place: path.display().to_string(),
            why: UNREACHABLE.to_owned(),
            fix: ENTER_IT.to_owned(),
        }]
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        if let Some(message) = inspect(capture.pid)? {
            raw.extend_from_slice(&message.encode_to_vec());
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok((!raw.is_empty()).then(|| raw.to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<RootMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: RootMessage = crate::error::decode(NAME, payload)?;
        let directory = find(&message, restore.opener)?;
        // Processes that share their root directory (CLONE_FS) change it only once. Inside the new root directory, the
        // path in /proc leads nowhere.
        if is_root_of(restore.stub.pid(), &directory)? {
            return Ok(());
        }
        let mut link = format!("/proc/{}/fd/{}", std::process::id(), directory.as_raw_fd()).into_bytes();
        link.push(0);
        let outcome =
            restore.stub.call_with(restore.memory, nr::CHROOT, &link, |at| [at.get(), 0, 0, 0, 0, 0]);
        outcome.map(drop).map_err(|error| {
            let why = format!("it cannot become the root directory of the program again: {error}");
            refuse(&path::from_bytes(&message.path), why, "restore as root (CAP_SYS_CHROOT)")
        })
    }
}

/// Returns the root directory of a process; `None` if it is the root directory of this process.
fn inspect(pid: Pid) -> Result<Option<RootMessage>> {
    if procfs::link(format!("/proc/{pid}/{LINK}"))? == procfs::link("/proc/self/root")? {
        return Ok(None);
    }
    let (name, stat, directory) = cwd::inspect(pid, LINK)?;
    if let Name::Gone(path) = &name {
        return Err(ResourceError::Unsupported {
            pid,
            what: format!("the root directory {}", path.display()),
            why: "it was removed".to_owned(),
            fix: "end the program that uses this directory".to_owned(),
        });
    }
    let identity = Some(Identity::with(&directory, &stat));
    let handle = Handle::of(&directory);
    Ok(Some(RootMessage { path: path::to_bytes(name.path()), identity, handle }))
}

/// Finds the directory of a record by its path or by its handle. Another directory is refused.
fn find(message: &RootMessage, opener: &Opener) -> Result<OwnedFd> {
    let path = path::from_bytes(&message.path);
    const USE: &str = "it was the root directory of the program";
    const FIX: &str = "put the directory of the checkpoint back, then restore again";
    let wanted = message.identity;
    let found = opener
        .find_anywhere(&path, wanted, message.handle.as_ref(), false)
        .map_err(|refusal| refusal.of(&path, USE, FIX))?;
    if !wanted.is_some_and(|wanted| found.is(&wanted)) {
        return Err(refuse(&path, format!("{USE}, and its path now leads to another directory"), FIX));
    }
    Ok(found.into_path_descriptor())
}

fn is_root_of(pid: Pid, directory: &OwnedFd) -> Result<bool> {
    let numbers = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let link = format!("/proc/{pid}/{LINK}");
    let now = rustix::fs::stat(&link).map_err(|errno| Error::path("inspect", &link, errno))?;
    let wanted = rustix::fs::fstat(directory).map_err(|errno| Error::new("inspect a directory", errno))?;
    Ok(numbers(now) == numbers(wanted))
}

fn refuse(path: &Path, why: String, fix: &str) -> ResourceError {
    ResourceError::File { path: path.display().to_string(), why, fix: fix.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(path: &Path) -> RootMessage {
        let directory = std::fs::File::open(path).unwrap();
        let identity = Some(Identity::of(&directory).unwrap());
        RootMessage { path: path::to_bytes(path), identity, handle: Handle::of(&directory) }
    }

    #[test]
    fn only_the_recorded_directory_becomes_the_root_directory() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (root, moved) = (folder.join("root"), folder.join("moved"));
        std::fs::create_dir(&root).unwrap();
        let recorded = message(&root);
        drop(find(&recorded, &Opener::default()).unwrap());
        std::fs::rename(&root, &moved).unwrap();
        std::fs::create_dir(&root).unwrap();
        let by_name = RootMessage { handle: None, ..recorded.clone() };
        std::fs::rename(&moved, root.join("inside")).unwrap();
        let refused = find(&by_name, &Opener::default()).unwrap_err().to_string();
        assert!(refused.contains("another directory"), "{refused}");
        if let Ok(found) = find(&recorded, &Opener::default()) {
            let identity = Identity::of(&found).unwrap();
            assert!(recorded.identity.unwrap().is_that_of(&identity));
        }
    }

    #[test]
    fn our_own_root_directory_is_not_recorded() {
        assert_eq!(inspect(Pid(std::process::id() as i32)).unwrap(), None);
    }
}
