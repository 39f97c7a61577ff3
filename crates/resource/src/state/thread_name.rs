//! The state kind of the name of a thread, as `ps -L` and `top -H` show the name.
//!
//! Owns: the content of `comm`, up to 15 bytes.
//! Does not: change the arguments that `ps` shows, which are in memory.

use tracee::arch::numbers as nr;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/thread_name";

const PR_SET_NAME: u64 = 15;
/// TASK_COMM_LEN without the terminating zero, in bytes.
const NAME_BYTES_MAX: usize = 15;

/// The state kind of thread names.
pub(super) struct ThreadName;

impl StateKind for ThreadName {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Setup }
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        raw.extend_from_slice(capture.file("comm")?);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        // The kernel appends a newline to the name.
        Ok(Some(raw.strip_suffix(b"\n").unwrap_or(raw).to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        if payload.len() > NAME_BYTES_MAX {
            return Err(ResourceError::malformed(NAME, "it is too long"));
        }
        Ok(())
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let mut name = payload.to_vec();
        name.push(0);
        restore.stub.call_with(restore.memory, nr::PRCTL, &name, |at| [PR_SET_NAME, at.get(), 0, 0, 0, 0])?;
        Ok(())
    }
}
