//! The `clear_child_tid` address of a thread, which the kernel clears and wakes a futex waiter on when the thread
//! ends.
//!
//! Owns: the address as set by set_tid_address(2) or clone(2); pthread_join depends on it.
//! Does not: change the word at the address.

use model::ByteCount;
use sys::task_reader::Field;
use tracee::arch::numbers as nr;

use super::kind::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use super::remote_calls::RemoteCalls;
use crate::error::{ResourceError, Result};

const NAME: &str = "state/tid_address";

const PR_GET_TID_ADDRESS: u64 = 40;
/// Not a return value of the call.
const UNKNOWN: u64 = u64::MAX;

/// The kind.
pub(super) struct TidAddress;

impl StateKind for TidAddress {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "the word that reports a thread's end (pthread_join)"
    }

    fn level(&self) -> Level {
        Level::Thread
    }

    fn stage(&self) -> Stage {
        Stage::Setup
    }

    fn sources(&self) -> Option<&'static [Field]> {
        Some(&[Field("clear_child_tid")])
    }

    fn add_calls(&self, _capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        calls.add_into(nr::PRCTL, [PR_GET_TID_ADDRESS, 0, 0, 0, 0, 0], 1, ByteCount(8));
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        for result in capture.results(NAME) {
            // Kernels without CONFIG_CHECKPOINT_RESTORE do not have the option.
            if result.value_or(UNKNOWN)? != UNKNOWN {
                raw.extend(result.bytes);
            }
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(raw.iter().any(|byte| *byte != 0).then(|| raw.to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        word(payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        restore.stub.call(nr::SET_TID_ADDRESS, [word(payload)?, 0, 0, 0, 0, 0])?;
        Ok(())
    }
}

fn word(payload: &[u8]) -> Result<u64> {
    let word = payload.try_into().map(u64::from_ne_bytes);
    word.map_err(|_| ResourceError::Malformed { kind: NAME, why: "it has the wrong length".to_owned() })
}
