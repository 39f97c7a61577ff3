//! Seccomp: the sandbox of a thread.
//!
//! Owns: refusing processes that have one.
//! Invariants: a sandbox is never lost silently.
//! Does not: rebuild filters yet.

use model::Pid;
use tracee::procfs;

use super::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;

const NAME: &str = "state/seccomp";
const WHY: &str = "the system call filters of a sandbox are not rebuilt yet";
const FIX: &str = "run the program without its sandbox";

/// The kind.
pub(super) struct Seccomp;

impl StateKind for Seccomp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "system call filters (refused)"
    }

    fn level(&self) -> Level {
        Level::Thread
    }

    fn stage(&self) -> Stage {
        Stage::Credentials
    }

    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        let threads = procfs::threads(pid).unwrap_or_default();
        let confined = threads
            .into_iter()
            .find(|tid| procfs::thread_status(pid, *tid).is_ok_and(|status| status.seccomp != 0));
        let obstacle = |tid: model::Tid| Obstacle {
            pid,
            what: "seccomp sandbox".to_owned(),
            place: format!("thread {tid}"),
            why: WHY.to_owned(),
            fix: FIX.to_owned(),
        };
        confined.into_iter().map(obstacle).collect()
    }

    fn inside(&self, capture: &mut StateCapture<'_>, _raw: &mut RawState) -> Result<()> {
        let pid = capture.pid;
        match procfs::status_line(capture.file("status")?, "Seccomp") {
            None | Some("0") => Ok(()),
            Some(_) => {
                let (why, fix) = (WHY.to_owned(), FIX.to_owned());
                Err(ResourceError::Unsupported { pid, what: "seccomp sandbox".to_owned(), why, fix })
            }
        }
    }

    fn after(&self, _raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn restore(&self, _version: u32, _payload: &[u8], _restore: &mut StateRestore<'_>) -> Result<()> {
        Ok(())
    }
}
