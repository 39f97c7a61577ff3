//! The working directory of a process.
//!
//! Owns: its path.
//! Does not: bring a directory back that is gone; preflight refuses such a process.

use std::os::unix::ffi::OsStrExt;

use model::Pid;
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;

const DELETED: &[u8] = b" (deleted)";

/// The kind.
pub(super) struct Cwd;

impl StateKind for Cwd {
    fn name(&self) -> &'static str {
        "state/cwd"
    }

    fn summary(&self) -> &'static str {
        "the working directory"
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
        if let Ok(path) = procfs::link(format!("/proc/{pid}/cwd"))
            && path.as_os_str().as_bytes().ends_with(DELETED)
        {
            let fix = "let the program change to a directory that exists";
            add("working directory", path.display().to_string(), "the directory was removed", fix);
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
        raw.extend_from_slice(procfs::link(format!("/proc/{}/cwd", capture.pid))?.as_os_str().as_bytes());
        Ok(())
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let mut path = payload.to_vec();
        path.push(0);
        let outcome =
            restore.stub.call_with(restore.memory, nr::CHDIR, &path, |at| [at.get(), 0, 0, 0, 0, 0]);
        outcome.map(drop).map_err(|error| ResourceError::File {
            path: String::from_utf8_lossy(payload).into_owned(),
            why: format!("the working directory cannot be entered: {error}"),
            fix: "create the directory again".to_owned(),
        })
    }
}
